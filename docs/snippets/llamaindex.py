from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

url = "http://localhost:30000/v1"
embedding = OpenAILikeEmbedding(api_base=url, api_key="none", model_name="tiny")
extra = {"extra_body": {"return_embedding": True}}
model = OpenAILike(
    api_base=url, api_key="none", model="tiny", max_tokens=8, is_chat_model=True, additional_kwargs=extra
)
answer = model.complete("def add(a, b):")
print(len(embedding.get_text_embedding("import os")), len(answer.raw.choices[0].embedding))
