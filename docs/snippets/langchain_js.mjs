import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";

const configuration = { baseURL: "http://localhost:30000/v1" };
const embeddings = new OpenAIEmbeddings({ model: "tiny", apiKey: "none", configuration });
const chat = new ChatOpenAI({
  model: "tiny",
  apiKey: "none",
  maxTokens: 8,
  modelKwargs: { return_embedding: true },
  __includeRawResponse: true, // or our fields are dropped
  configuration,
});
const answer = await chat.invoke("def add(a, b):");
const choice = answer.additional_kwargs.__raw_response.choices[0];
console.log((await embeddings.embedQuery("import os")).length, choice.embedding.length);
