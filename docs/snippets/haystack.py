from haystack.components.embedders import OpenAITextEmbedder
from haystack.utils import Secret

embedder = OpenAITextEmbedder(api_base_url="http://localhost:30000/v1", api_key=Secret.from_token("none"), model="tiny")
print(len(embedder.run("import os")["embedding"]))
