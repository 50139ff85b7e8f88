import openai

client = openai.OpenAI(base_url="http://localhost:30000/v1", api_key="none")
answer = client.chat.completions.create(
    model="tiny",
    messages=[{"role": "user", "content": "def add(a, b):"}],
    max_tokens=8,
    extra_body={"return_embedding": True},
)
print(len(answer.choices[0].embedding))
