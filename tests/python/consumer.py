"""A consumer of sidewatch in Python, with stock grpcio: the algorithm of docs/api.md, complete.

Prints one line of JSON with the names it holds after every frame that changed them.

    python consumer.py --address 127.0.0.1:50151 --subscription app
"""

import argparse
import collections
import importlib
import json
import pathlib
import sys
import time

import grpc
from grpc_tools import protoc


def stubs(folder):
    """Generates the stubs into `folder` and imports them."""
    proto = pathlib.Path(__file__).resolve().parents[2] / "proto"
    folder.mkdir(parents=True, exist_ok=True)
    include = pathlib.Path(protoc.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{proto}", f"-I{include}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    if protoc.main([*arguments, str(proto / "sidewatch/v1/sidewatch.proto")]) != 0:
        raise SystemExit("the stubs cannot be generated")
    sys.path.insert(0, str(folder))
    return (
        importlib.import_module("sidewatch.v1.sidewatch_pb2"),
        importlib.import_module("sidewatch.v1.sidewatch_pb2_grpc"),
    )


class Store:
    """What the consumer holds. `epoch` belongs to it: in a real application, to the database that is written to."""

    def __init__(self, pb):
        self.pb = pb
        self.epoch = 0
        self.held = collections.defaultdict(dict)
        self.seen = {}

    def apply(self, frame):
        """Applies a frame; False when it is a stale leader's, which must not be acked."""
        if frame.epoch and frame.epoch < self.epoch:
            return False
        self.epoch = max(self.epoch, frame.epoch)
        kind = frame.WhichOneof("kind")
        if kind == "batch":
            for event in frame.batch.events:
                ref = event.object_ref
                if event.type == self.pb.EVENT_TYPE_DELETED:
                    self.held[event.feed].pop(ref.uid, None)
                else:
                    self.held[event.feed][ref.uid] = f"{ref.namespace}/{ref.name}"
                if event.feed in self.seen:
                    self.seen[event.feed].add(ref.uid)
        elif kind == "snapshot_begin":
            self.seen[frame.snapshot_begin.feed] = set()
        elif kind == "snapshot_end":
            feed = frame.snapshot_end.feed
            seen = self.seen.pop(feed, set())
            if frame.snapshot_end.sweep:
                self.held[feed] = {uid: name for uid, name in self.held[feed].items() if uid in seen}
        elif kind == "leadership":
            print("leadership", self.pb.LeadershipState.Name(frame.leadership.state), file=sys.stderr)
        elif kind == "gap":
            print("gap", frame.gap, file=sys.stderr)
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="127.0.0.1:50151")
    parser.add_argument("--subscription", default="")
    parser.add_argument("--stubs", type=pathlib.Path, default=pathlib.Path(".build/python"))
    options = parser.parse_args()
    pb, rpc = stubs(options.stubs)
    store = Store(pb)
    delay = 0.2
    while True:
        try:
            with grpc.insecure_channel(options.address) as channel:
                events = rpc.EventServiceStub(channel)
                session = ""
                for message in events.Subscribe(pb.SubscribeRequest(subscription=options.subscription)):
                    frame = message.frame
                    delay = 0.2
                    if frame.WhichOneof("kind") == "session_started":
                        session = frame.session_started.session_id
                    if not store.apply(frame):
                        continue
                    if frame.WhichOneof("kind") in ("batch", "snapshot_end"):
                        held = sorted(name for feed in store.held.values() for name in feed.values())
                        print(json.dumps({"epoch": store.epoch, "held": held}), flush=True)
                    if frame.cursor and options.subscription:
                        ack = pb.AckRequest(subscription=options.subscription, cursor=frame.cursor, session_id=session)
                        events.Ack(ack)
        except grpc.RpcError as error:
            print(error.code(), error.details(), file=sys.stderr)
        time.sleep(delay)
        delay = min(delay * 2, 10)


if __name__ == "__main__":
    main()
