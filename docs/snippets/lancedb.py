import tempfile

import lancedb
from lancedb.embeddings import get_registry
from lancedb.pydantic import LanceModel, Vector

registry = get_registry()
registry.set_var("key", "none")
url = "http://localhost:30000/v1"
function = registry.get("openai").create(name="text-embedding-3-small", dim=256, base_url=url, api_key="$var:key")


class Text(LanceModel):
    text: str = function.SourceField()
    vector: Vector(256) = function.VectorField()


table = lancedb.connect(tempfile.mkdtemp()).create_table("code", schema=Text)
table.add([{"text": "import os"}, {"text": "class Stack:"}])
print(table.search("import os").limit(1).to_pydantic(Text)[0].text)
