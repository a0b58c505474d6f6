import threading

from instrumented_connectors.recorder import Recorder


def test_a_full_buffer_drops_and_counts() -> None:
    recorder = Recorder(capacity=3)
    for number in range(5):
        recorder.record((number, 0))
    assert recorder.dropped == 2
    assert [event[0] for event in recorder.drain()] == [0, 1, 2]
    recorder.record((9, 0))
    assert recorder.drain() == [(9, 0)]
    assert recorder.recorded == 4


def test_nothing_is_lost_between_threads() -> None:
    recorder, per_thread, drained = Recorder(capacity=1_000_000), 20_000, []
    threads = [
        threading.Thread(target=lambda n=n: [recorder.record((n, i)) for i in range(per_thread)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        drained += recorder.drain(limit=1000)
    while batch := recorder.drain():
        drained += batch
    assert len(drained) == 4 * per_thread
    for number in range(4):
        assert [event[1] for event in drained if event[0] == number] == list(range(per_thread))


def test_clear_forgets_a_forked_parents_events() -> None:
    recorder = Recorder(capacity=1)
    recorder.record((1, 0))
    recorder.record((2, 0))
    recorder.clear()
    assert (len(recorder), recorder.dropped) == (0, 0)
    recorder.record((3, 0))
    assert recorder.drain() == [(3, 0)]
