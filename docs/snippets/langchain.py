from langchain_openai import ChatOpenAI, OpenAIEmbeddings

url = "http://localhost:30000/v1"
embeddings = OpenAIEmbeddings(base_url=url, api_key="none", model="tiny", check_embedding_ctx_length=False)
chat = ChatOpenAI(base_url=url, api_key="none", model="tiny", max_tokens=8, temperature=0)
answer = chat.invoke("def add(a, b):")
print(len(embeddings.embed_query("import os")), answer.usage_metadata["output_tokens"])
