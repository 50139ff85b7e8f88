from typing import Literal

import instructor
import openai
from pydantic import BaseModel


class Colour(BaseModel):
    name: Literal["red", "green"]


client = instructor.from_openai(
    openai.OpenAI(base_url="http://localhost:30000/v1", api_key="none"), mode=instructor.Mode.JSON_SCHEMA
)
answer = client.chat.completions.create(
    model="tiny",
    messages=[{"role": "user", "content": "Name a colour."}],
    response_model=Colour,
    max_tokens=256,
    temperature=0,
    extra_body={"return_embedding": True},
)
print(answer.name, len(answer._raw_response.choices[0].embedding))
