import faiss
import numpy as np
import openai

client = openai.OpenAI(base_url="http://localhost:30000/v1", api_key="none")
texts = ["import os", "class Stack:"]
answer = client.embeddings.create(model="tiny", input=texts, extra_body={"normalize": True})
vectors = np.array([one.embedding for one in answer.data], "float32")
index = faiss.IndexFlatIP(vectors.shape[1])  # the inner product of normalized vectors is their cosine
index.add(vectors)
print(index.search(vectors[:1], 1)[1])
