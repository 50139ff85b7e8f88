"""Every maximum, with its reason."""

MAX_ECHOED_CHARACTERS = 200
"""An error message sends back no more than this of what a client sent."""

DELIVERY_SECONDS = 30.0
"""A finished request's vector and rows follow its last token within milliseconds; after this they are not coming."""

MAX_BODY_BYTES = 64 * 2**20
"""A request to a Tessera route; read no further, before anything is decoded. 2,048 prompts of 8,000 characters fit."""

DRAIN_BYTES = 2**30
"""How much of a refused body is still read, and dropped: most clients read no answer before all is sent."""

DRAIN_SECONDS = 20.0
"""The same in time; then the connection is closed."""

MAX_INPUTS = 2048
"""Prompts in one request to /v1/embeddings or /encode, as OpenAI has it."""

MAX_POSITIONS = 65_536
"""Token positions in one request for raw states: they ride to the scheduler as text."""

MAX_SPANS = 4096
"""Spans of one request: each is a vector of its answer, and a part of the kernel that pools them."""

LISTED_VALUE_BYTES = 32
"""What one number of a list counts among the bytes of an answer: its text has 12, and takes as long to write as 32
bytes of base64. The default of ``--answer-max-megabytes`` is then 33,554,432 numbers: two seconds of the event loop."""

ANSWERS_IN_FLIGHT = 2
"""In multiples of ``--answer-max-megabytes``: the raw rows of all requests together, from before they are queued until
their answers were sent; others wait in line. The main process holds up to four times as much: rows, text, the body."""

LEFT_SECONDS = 1.0
"""How often a waiting request checks for disconnects and aborts."""

PIECE_BYTES = 2**20
"""Answers with raw rows are sent in pieces of this size: no more of them is copied, and none is sent unasked."""

PIECE_SECONDS = 30.0
"""A client that takes less than `PIECE_BYTES` in this time is cut off: others wait for the room of its answer."""

MAX_TOPK = 512
"""Values that one TOPLOC fingerprint proves: more gain nothing, and their positions no longer fit below 65,497."""

MAX_OVERRIDES = 2048
"""Prompts, or objects of one prompt, in ``input_embed_overrides``: as many as prompts of /v1/embeddings."""

MAX_VECTOR_COPIES = 4
"""In multiples of ``--injection-max-megabytes``: the vectors of one request, as they go into the model, counted once
for each prompt and sample that has them. Each copy travels to the scheduler, and a small body could ask for many."""

MAX_TOKEN_CHARACTERS = 256
"""The text of one token; it is given to the tokenizer."""

MAX_SAMPLES = 16_384
"""Samples of one request, prompts times ``n``: the main process makes an object for each before any is queued."""

MAX_STOPS = 1024
"""Stop strings of a request: each is given to the tokenizer before it is queued, and looked for in every step."""

MAX_STOP_CHARACTERS = 65_536
"""The same, all together: a tokenizer takes a second for some 500,000."""

MAX_PATTERN_CHARACTERS = 512
"""Patterns of ``stop_regex``, all together: Python takes up to a second to compile 1,000 characters of the worst."""

MAX_LOGPROBS = 2**24
"""``top_logprobs_num`` or ids of ``token_ids_logprob``, times tokens, prompts and ``n``: the main process makes objects
of each, a million in two seconds."""

MAX_PROFILE_BYTES = 4 * 2**20
"""A cost profile in the cache; one of 100 graphs has 100 KiB. Read no further, before anything is decoded."""

MAX_TRACE_BYTES = 256 * 2**20
"""A trace of TileSpec's choices ends here: 100,000 steps with 64 requests, and no disk is filled by a forgotten one."""

MAX_TRACE_LINE = 2**20
"""One record of a trace; one of 512 requests has 20 KiB."""

MAX_PLACES = 2**32
"""Values among which one fingerprint looks (a prompt of 1,048,576 tokens of 4,096): places travel as 32 bits."""

MAX_FINGERPRINTS = 32_768
"""Fingerprints in one claim: a response of 1,048,544 tokens, longer than any context."""

MAX_CLAIMS = 512
"""Claims in one request to /v1/toploc/verify: each is a prefill, and their answers wait for each other."""

MAX_SAMPLED_TOKENS = 32_768
"""Tokens in one request to /v1/toploc/verify whose sampling is checked: for each, 32 log-probabilities are held (4 KB)
and looked at (0.1 ms of a thread)."""

MAX_NONCE_CHARACTERS = 128
"""A verifier's nonce: 64 random bytes in hexadecimal digits; it rides to the scheduler with the request."""
