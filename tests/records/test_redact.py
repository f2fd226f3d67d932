"""Keys and tokens are neither stored nor shown."""

from __future__ import annotations

import os
import shlex

import pytest

from runner.records.redaction import clip, redact, redact_command, redact_values

TOKENS = [
    "ghp_0123456789abcdefABCDEF0123456789abcd",
    "github_pat_11ABCDEFG0abcdefghijkl_0123456789abcdef",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "sk-0123456789abcdefghij0123456789abcdefghij",
    "sk-proj-ab_cd-0123456789abcdefghijABCD-ef_0123",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
]


def test_values_of_secret_variables_are_redacted(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "abcdef0123")
    monkeypatch.setenv("HF_TOKEN", "hf_123456")
    monkeypatch.setenv("DB_PASSWORD", "tiny")  # too short: it may be an ordinary word
    monkeypatch.setenv("HOME_SWEET_HOME", "nothing special")
    text = "got abcdef0123 and 'hf_123456', a tiny thing, nothing special"
    assert redact(text) == "got <redacted> and '<redacted>', a tiny thing, nothing special"


@pytest.mark.parametrize(
    "name",
    [
        "GITHUB_PAT",
        "MYSQL_PWD",
        "SSH_AUTH",
        "npm_config__auth",
        "SLACK_WEBHOOK_URL",
        "SENTRY_DSN",
        "DATABASE_URL",
        "LAB_CREDS",
        "KEYRING_PASSPHRASE",
    ],
)
def test_names_of_secrets(monkeypatch, name):
    monkeypatch.setenv(name, "wJalr/XUtnFEMI")
    assert redact("it is wJalr/XUtnFEMI.") == "it is <redacted>."


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "MY_AUTH"])
def test_a_secret_may_begin_with_a_slash(monkeypatch, name):
    monkeypatch.setenv(name, "/wJalrXUtnFEMI/K7MDENG")
    assert redact("it is /wJalrXUtnFEMI/K7MDENG.") == "it is <redacted>."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PWD", os.getcwd()),
        ("OLDPWD", os.getcwd()),
        ("MY_PWD", os.getcwd()),
        ("SSH_AUTH_SOCK", "/tmp/ssh-gone/agent.1"),
        ("SSH_AUTH_SOCK", "relative/agent.1"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/tmp/gone/key.json"),
        ("AUTH_HOST", "login.example.org"),
        ("AUTH_USER", "somebody"),
        ("GIT_AUTHOR_NAME", "somebody"),
        ("PATTERN", "gelu.*"),
        ("COMPATIBLE", "everything"),
    ],
)
def test_paths_hosts_and_users_are_not_redacted(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert redact(f"in {value}/x.py") == f"in {value}/x.py"


def test_a_password_that_is_the_name_of_the_user_hides_no_path(monkeypatch):
    monkeypatch.setenv("USER", "postgres")
    monkeypatch.setenv("PGPASSWORD", "postgres")
    assert redact("/home/postgres/x.py") == "/home/postgres/x.py"


def test_the_password_in_a_url_is_redacted_and_its_user_and_host_are_not(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://anna:S3cr3t-1@proxy.example.org:3128")
    monkeypatch.setenv("PIP_INDEX_URL", "https://bot:p@ssword@pypi.example.org/simple")
    text = "via http://anna:S3cr3t-1@proxy.example.org:3128, then redis://:other1@db:6379/0; S3cr3t-1 was refused"
    assert redact(text) == (
        "via http://anna:<redacted>@proxy.example.org:3128, then redis://:<redacted>@db:6379/0; <redacted> was refused"
    )
    assert redact("http://localhost:8080/a@b") == "http://localhost:8080/a@b"


@pytest.mark.parametrize("token", TOKENS)
def test_what_looks_like_a_token_is_redacted(token):
    assert redact(f"'{token}', and 401") == "'<redacted>', and 401"
    assert redact_command(["runner", f"impl.path={token}"]) == "runner 'impl.path=<redacted>'"


@pytest.mark.parametrize("name", ["passphrase", "bearer", "session_cookie", "creds", "api_key"])
def test_a_config_is_redacted_at_every_depth(monkeypatch, name):
    monkeypatch.setenv("HF_TOKEN", "abcdef0123")
    config = {"run": [{name: "hunter22", "note": "has abcdef0123", "rows": 8, f"{name}_path": "x/y"}]}
    shown = {"run": [{name: "<redacted>", "note": "has <redacted>", "rows": 8, f"{name}_path": "x/y"}]}
    assert redact_values(config) == shown


def test_what_only_begins_like_a_token_is_not_redacted():
    text = "hf_transformer_block task-0123 sk-learn-like-names risk-0123456789abcdefghij0 eyJ AKIA ghp_x"
    assert redact(text) == text


def test_each_line_of_a_secret_of_several_lines_is_redacted(monkeypatch):
    monkeypatch.setenv("DEPLOY_KEY", "-----BEGIN KEY-----\nMIIEpAIBAAKCAQ\n  b3BlbnNzaC1r\n-----END KEY-----\n")
    assert redact("line 2 is MIIEpAIBAAKCAQ; \\nb3BlbnNzaC1r\\n") == "line 2 is <redacted>; \\n<redacted>\\n"


def test_values_of_secret_fields_are_redacted_in_a_command(monkeypatch):
    monkeypatch.setenv("MY_SECRET", "in the middle")
    words = ["runner", "+log.api_key=k1", "token=t 2", "name=x-in the middle", "workload=gelu"]
    shown = "runner '+log.api_key=<redacted>' 'token=<redacted>' 'name=x-<redacted>' workload=gelu"
    assert redact_command(words) == shown


def test_a_redacted_command_can_be_pasted(monkeypatch):
    words = ["python", "impl.path='a,b/k.py:softmax'", "measure=[benchmark,profile]", "question=why? it's $slow", "-m"]
    assert shlex.split(redact_command(words)) == words
    monkeypatch.setenv("MY_SECRET", "don't tell")
    assert shlex.split(redact_command(["name=x-don't tell"])) == ["name=x-<redacted>"]


def test_a_character_that_separates_words_does_not_shift_later_ones():
    assert redact_command(["a\x1erm -rf x", "c"]) == "'a rm -rf x' c"


def test_a_long_text_is_clipped_in_the_middle(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_123456")
    assert clip(f"{'a' * 96}hf_123456{'b' * 10**6}", 100, 5) == f"{'a' * 96}<red [...] bbbbb"
    assert clip("as it is\n", 4, 5) == "as it is\n"


def test_bytes_that_are_not_utf_8_are_escaped():
    assert clip("caf\udce9 日本") == r"caf\udce9 日本"
