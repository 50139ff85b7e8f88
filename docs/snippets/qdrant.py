import openai
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams

client = openai.OpenAI(base_url="http://localhost:30000/v1", api_key="none")
texts = ["import os", "class Stack:"]
answer = client.embeddings.create(model="tiny", input=texts, extra_body={"pooling": "mean"})
vectors = [one.embedding for one in answer.data]
store = QdrantClient(":memory:")
store.create_collection("code", VectorParams(size=len(vectors[0]), distance=Distance.COSINE))
store.upsert("code", [PointStruct(id=i, vector=v, payload={"text": texts[i]}) for i, v in enumerate(vectors)])
print(store.query_points("code", vectors[0], limit=1).points[0].payload)
