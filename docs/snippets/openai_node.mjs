import OpenAI from "openai";

const client = new OpenAI({ baseURL: "http://localhost:30000/v1", apiKey: "none" });
const answer = await client.chat.completions.create({
  model: "tiny",
  messages: [{ role: "user", content: "def add(a, b):" }],
  max_tokens: 8,
  return_embedding: true, // TypeScript: cast the body to `any`
});
console.log(answer.choices[0].embedding.length);
