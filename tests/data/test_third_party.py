from commonwatt.data import third_party


def test_variable_names_the_folder_of_traces(monkeypatch, tmp_path):
    (tmp_path / "a.csv").write_text("x")
    monkeypatch.setenv(third_party.VARIABLE, str(tmp_path))
    assert third_party.find("a.csv") == tmp_path / "a.csv"
    assert third_party.find("b.csv") is None


def test_variable_may_name_a_folder_that_holds_traces(monkeypatch, tmp_path):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.csv").write_text("x")
    monkeypatch.setenv(third_party.VARIABLE, str(tmp_path))
    assert third_party.find("a.csv") == tmp_path / "traces" / "a.csv"


def test_a_wrong_variable_does_not_fall_back(monkeypatch, tmp_path):
    shared = tmp_path / "shared" / "data" / "traces"
    shared.mkdir(parents=True)
    (shared / "a.csv").write_text("x")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv(third_party.VARIABLE, raising=False)
    found = third_party.find("a.csv")
    assert found is not None
    assert found.samefile(shared / "a.csv")
    monkeypatch.setenv(third_party.VARIABLE, str(tmp_path / "nowhere"))
    assert third_party.folder() is None
    assert third_party.find("a.csv") is None


def test_nothing_beside_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.delenv(third_party.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert third_party.folder() is None


def test_a_folder_is_no_file(monkeypatch, tmp_path):
    (tmp_path / "a.csv").mkdir()
    monkeypatch.setenv(third_party.VARIABLE, str(tmp_path))
    assert third_party.find("a.csv") is None


def test_the_folder_beside_must_hold_traces(monkeypatch, tmp_path):
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv(third_party.VARIABLE, raising=False)
    assert third_party.folder() is None
