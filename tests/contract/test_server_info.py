"""What /server_info tells of SGLang's options, and what it does not."""

from __future__ import annotations

import inspect
import re

from sglang.srt.server_args import ServerArgs

from tessera_patches.http.info import REDACTED, SECRETS, redact

WITHOUT_SUFFIX = {"watermark_config", "watermark_key_b"}
"""Of SGLang 0.5.23, whose own log redacts them, too."""


def test_secrets_are_those_of_sglang() -> None:
    """Each option of the installed SGLang whose name says so."""
    names = set(inspect.signature(ServerArgs).parameters)
    secret = {name for name in names if re.search(r"(^|_)(key|password|secret|credentials?|(api|auth)_token)$", name)}
    assert secret | names & WITHOUT_SUFFIX == names & set(SECRETS)


def test_redacted() -> None:
    """At any depth; what is not set stays, so that a client can see that there is none."""
    args = {"api_key": "a", "admin_api_key": None, "ssl_keyfile_password": "b", "port": 1}
    shown = redact({**args, "internal_states": [{**args, "admin_api_key": "c"}], "version": "x"})
    ours = {"api_key": REDACTED, "admin_api_key": None, "ssl_keyfile_password": REDACTED, "port": 1}
    assert shown == {**ours, "internal_states": [{**ours, "admin_api_key": REDACTED}], "version": "x"}
