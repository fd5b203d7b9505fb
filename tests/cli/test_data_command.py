import json


def test_the_known_corpora_are_listed_with_what_was_downloaded(run_command, workshop):
    lines = run_command("data").stdout.splitlines()
    assert lines[0].split() == ["name", "size", "here", "licence"]
    assert lines[1].split()[0] == "tales"
    assert run_command("data").stdout == run_command("data", "list").stdout
    (workshop / "data").mkdir()
    (workshop / "data" / "the-verdict.txt").write_text("here")
    listed = json.loads(run_command("data", "list", "--json").stdout)
    present = {fact["name"]: fact.get("present") for fact in listed}
    assert (present["the-verdict"], present["tiny-shakespeare"]) == (True, False)


def test_a_text_is_prepared_and_described(run_command, workshop, monkeypatch):
    text = (workshop / "story.txt").read_text()
    result = run_command("data", "show", "story.txt", "--tokenizer", "char", "--json")
    facts = json.loads(result.stdout)
    assert (facts["name"], facts["vocabulary"]) == ("story.txt", len(set(text)))
    assert facts["training_bytes"] + facts["validation_bytes"] == len(text)
    assert text.startswith(facts["begins"])
    (workshop / "bell.txt").write_text("\x1b[2J\x07 and so on " * 9)
    monkeypatch.setattr("mlx_attn.text.characters.Tokenizer.block", 100)
    result = run_command("data", "show", "bell.txt", "--tokenizer", "byte")
    assert result.stderr == "encoding characters: 100 of 129\n"
    assert result.stdout.splitlines()[2].split() == ["vocabulary", "256"]
    assert not {"\x1b", "\x07"} & set(result.stdout)  # a text cannot steer the terminal


def test_the_same_seed_tells_the_same_stories(run_command):
    told = [run_command("data", "tales", "-n5", "--seed", seed).stdout for seed in ("3", "3", "4")]
    assert told[0] == told[1] != told[2]
    assert told[0].count("\n") == 5
    tale = json.loads(run_command("data", "tales", "-n1", "--json").stdout)
    assert "".join(tale["text"][s["start"] : s["end"]] for s in tale["spans"]) == tale["text"]
