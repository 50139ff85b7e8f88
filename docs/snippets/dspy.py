import dspy

lm = dspy.LM(
    "openai/tiny",
    api_base="http://localhost:30000/v1",
    api_key="none",
    max_tokens=8,
    cache=False,
    extra_body={"return_embedding": True},
)
lm("def add(a, b):")
print(len(lm.history[-1]["response"].choices[0].provider_specific_fields["embedding"]))
