import openai
import outlines

model = outlines.from_sglang(openai.OpenAI(base_url="http://localhost:30000/v1", api_key="none"), "tiny")
colour = model("Name a colour.", outlines.regex("(red|green)"), max_tokens=8, temperature=0)
print(colour)
