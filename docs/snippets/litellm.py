import litellm

answer = litellm.completion(
    model="openai/tiny",
    api_base="http://localhost:30000/v1",
    api_key="none",
    messages=[{"role": "user", "content": "def add(a, b):"}],
    max_tokens=8,
    extra_body={"return_embedding": True},
)
print(len(answer.choices[0].provider_specific_fields["embedding"]))
