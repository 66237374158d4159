"""What ranks are answered, line by line."""

from __future__ import annotations

from himach.ranks.launch.launcher import KeyValues


def ask(values: KeyValues, rank: int, line: str) -> str:
    """Return the one answer that this rank gets."""
    ((to, answer),) = values.answer(rank, line)
    assert to == rank
    assert answer.endswith(b"\n")
    return answer.decode().rstrip("\n")


def test_what_one_rank_puts_others_get():
    values = KeyValues(2)
    assert ask(values, 0, "cmd=init pmi_version=1 pmi_subversion=1").endswith("pmi_version=1 pmi_subversion=1 rc=0")
    name = ask(values, 0, "cmd=get_my_kvsname").split("kvsname=")[1].split()[0]
    assert ask(values, 1, "cmd=get_my_kvsname").split("kvsname=")[1].split()[0] == name
    assert ask(values, 0, f"cmd=put kvsname={name} key=P0 value=a=b#c") == "cmd=put_result rc=0 msg=success"
    assert ask(values, 1, f"cmd=get kvsname={name} key=P0").endswith(" value=a=b#c")
    assert " rc=-1 " in ask(values, 1, f"cmd=get kvsname={name} key=P1")
    assert ask(values, 1, f"cmd=get kvsname={name} key=PMI_process_mapping").endswith("value=(vector,(0,1,2))")


def test_two_worlds_have_two_names():
    assert ask(KeyValues(1), 0, "cmd=get_my_kvsname") != ask(KeyValues(1), 0, "cmd=get_my_kvsname")


def test_a_barrier_opens_when_all_have_come_and_again():
    values = KeyValues(3)
    for _ in range(2):
        assert values.answer(2, "cmd=barrier_in") == []
        assert values.answer(0, "cmd=barrier_in") == []
        assert sorted(values.answer(1, "cmd=barrier_in")) == [(rank, b"cmd=barrier_out rc=0\n") for rank in range(3)]


def test_ends_are_noted():
    values = KeyValues(2)
    assert ask(values, 1, "cmd=finalize") == "cmd=finalize_ack rc=0"
    assert values.finalized == {1}
    assert values.aborted is None
    assert values.answer(0, "cmd=abort exitcode=7") == []
    assert values.aborted == 7


def test_what_is_not_served_is_refused_and_no_rank_waits():
    values = KeyValues(1)
    assert "rc=-1" in ask(values, 0, "cmd=lookup_name service=x")
    assert "rc=-1" in ask(values, 0, "cmd=made_up")
    for line in ("mcmd=spawn", "nprocs=1", "execname=true", "cmd=put"):
        assert values.answer(0, line) == []
    assert "rc=-1" in ask(values, 0, "endcmd")
    assert ask(values, 0, "cmd=get_appnum") == "cmd=appnum appnum=0 rc=0"
