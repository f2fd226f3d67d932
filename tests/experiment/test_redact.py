"""Keys and tokens are in nothing that is kept or shown."""

from __future__ import annotations

from runner.experiment.results import clip, redact, redact_command


def test_the_values_of_secrets_go_and_the_rest_stays(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "abcdef0123")
    monkeypatch.setenv("HF_TOKEN", "hf_123456")
    monkeypatch.setenv("DB_PASSWORD", "tiny")  # too short to be told from a word
    monkeypatch.setenv("HOME_SWEET_HOME", "nothing special")
    text = "got abcdef0123 and 'hf_123456', a tiny thing, nothing special"
    assert redact(text) == "got <redacted> and '<redacted>', a tiny thing, nothing special"


def test_a_command_line_loses_what_is_given_to_such_fields(monkeypatch):
    monkeypatch.setenv("MY_SECRET", "in the middle")
    words = ["runner", "+log.api_key=k1", "token=t 2", "name=x-in the middle", "workload=gelu"]
    assert redact_command(words) == "runner +log.api_key=<redacted> token=<redacted> name=x-<redacted> workload=gelu"


def test_of_a_text_of_any_length_a_row_keeps_the_beginning_and_the_end(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_123456")
    assert clip(f"{'a' * 96}hf_123456{'b' * 10**6}", 100, 5) == f"{'a' * 96}<red [...] bbbbb"
    assert clip("as it is\n", 4, 5) == "as it is\n"


def test_what_no_file_takes_is_spelt():
    assert clip("caf\udce9 日本") == r"caf\udce9 日本"
