# locust -f locustfile.py --headless --users 8 --run-time 1m --host http://localhost:30000
from locust import HttpUser, task


class Client(HttpUser):
    @task
    def embed_and_generate(self):
        sampling = {"max_new_tokens": 32}
        body = {"text": "def add(a, b):", "sampling_params": sampling, "return_embedding": {"over": "all"}}
        self.client.post("/generate", json=body)
