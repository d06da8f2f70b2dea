"""Random programs against two books: after every step the region must say what the fake driver's own books say.

Hypothesis drives processes and threads through every kind of memory on two cards, and kills them. The fake driver is
the model: a rule only keeps what it needs to name objects, and to say whether a refused request would have fitted.
"""

import itertools
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.fakegpu.machine import Card, make_machine
from tests.native.client import Client, Server
from tests.native.conftest import SECOND_CARD
from tests.native.container import MIB, Container, make_container

DEVICES = 2
LIMIT = 4096 * MIB
ESTIMATE = 520 * MIB
"""What the library expects of a context on a card of compute capability 9.0, which has multicast objects."""
HOPPER = {"compute-capability": "9.0"}
HEAP = 8 * MIB
"""The memory for a kernel's own allocations that a context's cost includes."""
PIECE = 2 * MIB
PHASES = [Phase.generate]
"""Without Phase.shrink, which takes minutes: add it to look into a failure."""
THREADS = 3
PROCESSES = 3

MAKES = {"own": "make_context", "primary": "retain_primary", "green": "make_green"}
T = TypeVar("T")
SIZES = strategies.one_of(
    strategies.integers(1, 4 * MIB),
    strategies.integers(1, 64).map(lambda number: number * PIECE),
    strategies.integers(1, 40).map(lambda number: number * 100 * MIB),
)


SMALL = strategies.sampled_from([1, 2, 4, 8])
"""Pieces."""


@dataclass(frozen=True)
class Thing:
    """Something that a process holds under a number."""

    number: int
    kind: str
    device: int
    context: int | None = None
    """It ends with this context."""
    size: int = 0
    inside: int | None = None
    """The pool of a block, the object of a binding, the descriptor of an export."""
    offset: int = 0
    shared: bool = False


@dataclass
class Program:
    """One process and what it holds."""

    client: Client
    contexts: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Device, and whether it is an own context, a reference to the primary one, or a green one, by number."""
    things: dict[int, Thing] = field(default_factory=dict)
    launched: set[int] = field(default_factory=set)
    """Modules whose code was loaded at a launch."""

    def on(self, device: int) -> int | None:
        return next((number for number, (place, _) in self.contexts.items() if place == device), None)

    def of(self, *kinds: str) -> list[Thing]:
        return [thing for thing in self.things.values() if thing.kind in kinds]


def whole_pieces(size: int) -> int:
    return -(-size // PIECE) * PIECE


class Books(RuleBasedStateMachine):
    """The container and its programs."""

    container: ClassVar[Container]
    server: ClassVar[Server]
    programs: list[Program]

    def __init__(self) -> None:
        super().__init__()
        self.programs = []
        self.orphans: list[int] = []
        self.numbers = itertools.count(1)

    # Choosing.

    def pick(self, data: strategies.DataObject, options: list[T]) -> T | None:
        return data.draw(strategies.sampled_from(options)) if options else None

    def chosen(self, data: strategies.DataObject, *kinds: str) -> tuple[Program, Thing] | None:
        found = [(program, thing) for program in self.programs for thing in program.of(*kinds)]
        return self.pick(data, found)

    def in_context(self, data: strategies.DataObject) -> tuple[Program, int, int, int] | None:
        """A program, a thread of it, a context that is now current there, and its device."""
        found = [(program, number) for program in self.programs for number in program.contexts]
        one = self.pick(data, found)
        if one is None:
            return None
        program, number = one
        thread = data.draw(strategies.integers(0, THREADS - 1))
        program.client.run(f"use({number})", thread)
        return program, thread, number, program.contexts[number][0]

    def anywhere(self, program: Program, thing: Thing) -> bool:
        """Make a context of the thing's device current in thread 0, its own if it has one."""
        number = thing.context if thing.context in program.contexts else program.on(thing.device)
        if number is not None:
            program.client.run(f"use({number})")
        return number is not None

    def must(self, program: Program, call: str, thread: int = 0) -> None:
        answer = program.client.run(call, thread)
        assert answer == "SUCCESS", f"{call}: {answer}"

    def total(self, device: int) -> int:
        return self.container.total(device)

    def granted(self, answer: str, device: int, needed: int) -> bool:
        """Whether memory was granted; a refusal must be right."""
        if answer == "SUCCESS":
            return True
        assert answer == "OUT_OF_MEMORY", answer
        assert self.total(device) + needed > LIMIT, f"{needed} bytes were refused with {self.total(device)} charged"
        return False

    # Programs.

    @initialize()
    def begin(self) -> None:
        self.start_program()
        self.make_context_in(self.programs[0], 0)

    @precondition(lambda self: len(self.programs) < PROCESSES)
    @rule()
    def start_program(self) -> None:
        program = Program(self.server.client())
        self.must(program, "start()")
        self.programs.append(program)

    def forget(self, program: Program) -> None:
        self.programs.remove(program)

    @precondition(lambda self: len(self.programs) > 1)
    @rule(data=strategies.data(), child=strategies.booleans())
    def kill_program(self, data: strategies.DataObject, child: bool) -> None:
        program = data.draw(strategies.sampled_from(self.programs))
        if child:
            self.orphans.append(program.client.run("leave_a_child()"))
        program.client.kill()
        self.forget(program)

    @precondition(lambda self: len(self.programs) > 1)
    @rule(data=strategies.data())
    def execute_another(self, data: strategies.DataObject) -> None:
        """The process lives on, and holds nothing."""
        program = data.draw(strategies.sampled_from(self.programs))
        program.client.execute("sleep", "600")
        assert self.container.slot(program.client.pid) is None
        self.orphans.append(program.client.pid)
        program.client.close()
        self.forget(program)

    @rule(data=strategies.data())
    def fork(self, data: strategies.DataObject) -> None:
        program = data.draw(strategies.sampled_from(self.programs))
        assert program.client.run("child_takes()") == "NOT_INITIALIZED"

    # Contexts.

    def make_context_in(self, program: Program, device: int, kind: str = "primary") -> None:
        number = next(self.numbers)
        made = kind == "own" or not self.primary_is_there(program, device)
        if self.granted(program.client.run(f"{MAKES[kind]}({number}, {device})"), device, ESTIMATE if made else 0):
            program.contexts[number] = (device, kind)

    def primary_is_there(self, program: Program, device: int) -> bool:
        return any(place == device and kind != "own" for place, kind in program.contexts.values())

    @rule(
        data=strategies.data(), device=strategies.integers(0, DEVICES - 1), kind=strategies.sampled_from(sorted(MAKES))
    )
    def make_context(self, data: strategies.DataObject, device: int, kind: str) -> None:
        self.make_context_in(data.draw(strategies.sampled_from(self.programs)), device, kind)

    @rule(data=strategies.data(), pieces=strategies.integers(0, 50))
    def set_heap(self, data: strategies.DataObject, pieces: int) -> None:
        one = self.in_context(data)
        if one:
            self.must(one[0], f"set_heap({HEAP + pieces * PIECE})", one[1])

    @rule(data=strategies.data())
    def end_context(self, data: strategies.DataObject) -> None:
        one = self.in_context(data)
        if one is None:
            return
        program, _, number, device = one
        kind = program.contexts[number][1]
        ends = {"own": f"end_context({number})", "green": f"end_green({number})"}
        self.must(program, ends.get(kind, f"release_primary({number}, {device})"))
        del program.contexts[number]
        if kind == "own":
            self.context_ended(program, number)
        elif not self.primary_is_there(program, device):
            self.primary_ended(program, device)

    @rule(data=strategies.data(), device=strategies.integers(0, DEVICES - 1))
    def reset_primary(self, data: strategies.DataObject, device: int) -> None:
        program = data.draw(strategies.sampled_from(self.programs))
        self.must(program, f"reset_primary({device})")
        retained = [number for number, (place, kind) in program.contexts.items() if place == device and kind != "own"]
        for number in retained:
            del program.contexts[number]
        if retained:
            self.primary_ended(program, device)

    def context_ended(self, program: Program, number: int) -> None:
        for thing in list(program.things.values()):
            if thing.context == number:
                del program.things[thing.number]

    def primary_ended(self, program: Program, device: int) -> None:
        """All references name one context, and the device's pools end with it."""
        primary, pooled = -1 - device, ("pool", "ordered", "pooled")
        for thing in list(program.things.values()):
            if thing.context == primary or (thing.kind in pooled and thing.device == device):
                del program.things[thing.number]

    def owner(self, program: Program, number: int) -> int:
        device, kind = program.contexts[number]
        return number if kind == "own" else -1 - device

    # Memory that belongs to a context.

    def keep(self, program: Program, **thing: Any) -> None:
        made = Thing(**thing)
        program.things[made.number] = made

    @rule(data=strategies.data(), size=SIZES, kind=strategies.sampled_from(["take", "take_managed"]))
    def take(self, data: strategies.DataObject, size: int, kind: str) -> None:
        one = self.in_context(data)
        if one is None:
            return
        program, thread, context, device = one
        number = next(self.numbers)
        if self.granted(program.client.run(f"{kind}({number}, {size})", thread), device, size):
            owner = self.owner(program, context)
            self.keep(program, number=number, kind=kind, device=device, context=owner, size=size)

    @rule(data=strategies.data(), width=strategies.integers(1, 4 * MIB), height=strategies.integers(1, 600))
    def take_pitch(self, data: strategies.DataObject, width: int, height: int) -> None:
        one = self.in_context(data)
        if one is None:
            return
        program, thread, context, device = one
        number, size = next(self.numbers), -(-width // 512) * 512 * height
        if self.granted(program.client.run(f"take_pitch({number}, {width}, {height})", thread), device, size):
            owner = self.owner(program, context)
            self.keep(program, number=number, kind="take", device=device, context=owner, size=size)

    @rule(data=strategies.data())
    def share(self, data: strategies.DataObject) -> None:
        """What another process opens, as often as it likes, stays the exporter's."""
        one = self.chosen(data, "take")
        if one is None or not self.anywhere(*one):
            return
        exporter, thing = one
        others = [program for program in self.programs if program is not exporter]
        importer = self.pick(data, [program for program in others if program.on(thing.device) is not None])
        if importer is None:
            return
        content = exporter.client.run(f"share_handle({thing.number})")
        first, second = next(self.numbers), next(self.numbers)
        importer.client.run(f"use({importer.on(thing.device)})")
        for number in (first, second):
            self.must(importer, f"open_handle({number}, {content!r})")
        self.books_agree()
        for number in (first, second):
            importer.client.run(f"use({importer.on(thing.device)})")
            self.must(importer, f"close_handle({number})")

    @rule(data=strategies.data())
    def touch_managed(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "take_managed")
        if one and self.anywhere(*one):
            self.must(one[0], f"touch({one[1].number})")

    @rule(data=strategies.data(), call=strategies.sampled_from(["free", "free_ordered"]))
    def free(self, data: strategies.DataObject, call: str) -> None:
        one = self.chosen(data, "take", "take_managed", "ordered", "pooled")
        if one is None or not self.anywhere(*one):
            return
        program, thing = one
        if thing.kind == "take_managed":
            call = "free"
        self.must(program, f"{call}({thing.number})")
        del program.things[thing.number]

    @rule(
        data=strategies.data(),
        shape=strategies.tuples(*[strategies.integers(0, 2000)] * 2, strategies.integers(0, 20)),
        levels=strategies.integers(0, 3),
    )
    def take_array(self, data: strategies.DataObject, shape: tuple[int, int, int], levels: int) -> None:
        one = self.in_context(data)
        if one is None:
            return
        program, thread, context, device = one
        number = next(self.numbers)
        width, height, depth = shape[0] + 8, shape[1] + 8, shape[2] + 8 if shape[2] else 0
        answer = program.client.run(f"take_array({number}, {width}, {height}, {depth}, {levels})", thread)
        if self.granted(answer, device, 16 * width * height * max(depth, 1)):
            owner = self.owner(program, context)
            self.keep(program, number=number, kind="array", device=device, context=owner)

    @rule(data=strategies.data())
    def free_array(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "array", "sparse")
        if one and self.anywhere(*one):
            program, thing = one
            self.must(program, f"free_array({thing.number})")
            del program.things[thing.number]

    @rule(data=strategies.data(), size=strategies.integers(1, 8 * MIB))
    def load(self, data: strategies.DataObject, size: int) -> None:
        one = self.in_context(data)
        if one is None:
            return
        program, thread, context, device = one
        number = next(self.numbers)
        self.must(program, f"load({number}, {size})", thread)
        owner = self.owner(program, context)
        self.keep(program, number=number, kind="module", device=device, context=owner)

    @rule(data=strategies.data())
    def launch(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "module")
        if one and self.use_own(*one):
            self.must(one[0], f"launch({one[1].number})")
            one[0].launched.add(one[1].number)

    @rule(data=strategies.data())
    def unload(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "module")
        if one and self.use_own(*one):
            program, thing = one
            self.must(program, f"unload({thing.number})")
            del program.things[thing.number]

    def use_own(self, program: Program, thing: Thing) -> bool:
        for number in program.contexts:
            if self.owner(program, number) == thing.context:
                program.client.run(f"use({number})")
                return True
        return False

    # Stream-ordered memory.

    @rule(data=strategies.data(), size=SIZES)
    def take_ordered(self, data: strategies.DataObject, size: int) -> None:
        one = self.in_context(data)
        if one is None:
            return
        program, thread, _, device = one
        number = next(self.numbers)
        if self.granted(program.client.run(f"take_ordered({number}, {size})", thread), device, whole_pieces(size)):
            self.keep(program, number=number, kind="ordered", device=device)

    @rule(data=strategies.data(), size=SIZES, device=strategies.integers(0, DEVICES - 1))
    def take_from_default_pool(self, data: strategies.DataObject, size: int, device: int) -> None:
        one = self.in_context(data)
        if one is None or one[0].on(device) is None:
            return
        program, thread, _, _ = one
        number = next(self.numbers)
        answer = program.client.run(f"take_from_default({number}, {size}, {device})", thread)
        if self.granted(answer, device, whole_pieces(size)):
            self.keep(program, number=number, kind="ordered", device=device)

    @rule(data=strategies.data(), device=strategies.integers(0, DEVICES - 1), keep=strategies.booleans())
    def make_pool(self, data: strategies.DataObject, device: int, keep: bool) -> None:
        program = data.draw(strategies.sampled_from(self.programs))
        number = next(self.numbers)
        self.must(program, f"make_pool({number}, {device}, {keep})")
        self.keep(program, number=number, kind="pool", device=device)

    @rule(data=strategies.data(), size=SIZES)
    def take_from_pool(self, data: strategies.DataObject, size: int) -> None:
        one = self.chosen(data, "pool")
        if one is None or not self.anywhere(*one):
            return
        program, pool = one
        number = next(self.numbers)
        answer = program.client.run(f"take_from({number}, {size}, {pool.number})")
        if self.granted(answer, pool.device, whole_pieces(size)):
            self.keep(program, number=number, kind="pooled", device=pool.device, inside=pool.number)

    @rule(data=strategies.data(), call=strategies.sampled_from(["trim_pool", "end_pool"]))
    def end_or_trim_pool(self, data: strategies.DataObject, call: str) -> None:
        one = self.chosen(data, "pool")
        if one is None:
            return
        program, pool = one
        self.must(program, f"{call}({pool.number})")
        if call == "end_pool":
            del program.things[pool.number]

    @rule(data=strategies.data())
    def wait(self, data: strategies.DataObject) -> None:
        one = self.in_context(data)
        if one:
            self.must(one[0], "wait()", one[1])

    # Memory by handle.

    @rule(
        data=strategies.data(),
        device=strategies.integers(0, DEVICES - 1),
        pieces=strategies.one_of(SMALL, strategies.integers(1, 600)),
        shared=strategies.booleans(),
    )
    def create(self, data: strategies.DataObject, device: int, pieces: int, shared: bool) -> None:
        program = data.draw(strategies.sampled_from(self.programs))
        number, size = next(self.numbers), pieces * PIECE
        if self.granted(program.client.run(f"create({number}, {size}, {device}, {shared})"), device, size):
            self.keep(program, number=number, kind="handle", device=device, size=size, shared=shared)

    @rule(data=strategies.data())
    def export(self, data: strategies.DataObject) -> None:
        """A descriptor keeps the memory too, but is nobody's use of it."""
        found = [(program, thing) for program in self.programs for thing in program.of("handle") if thing.shared]
        one = self.pick(data, found)
        if one is None:
            return
        program, handle = one
        number = next(self.numbers)
        descriptor = program.client.run(f"export({number}, {handle.number})")
        self.keep(program, number=number, kind="export", device=handle.device, size=handle.size, inside=descriptor)

    @rule(data=strategies.data())
    def end_export(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "export")
        if one:
            self.must(one[0], f"end_export({one[1].number})")
            del one[0].things[one[1].number]

    @rule(data=strategies.data())
    def import_(self, data: strategies.DataObject) -> None:
        """Whoever imports it, the memory stays who made it's."""
        one = self.chosen(data, "export")
        if one is None:
            return
        exporter, thing = one
        program = data.draw(strategies.sampled_from(self.programs))
        number = next(self.numbers)
        self.must(program, f"import_from({number}, {exporter.client.pid}, {thing.inside})")
        self.keep(program, number=number, kind="handle", device=thing.device, size=thing.size, shared=True)

    @rule(data=strategies.data())
    def map_handle(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "handle")
        if one is None:
            return
        program, handle = one
        number = next(self.numbers)
        self.must(program, f"map_handle({number}, {handle.number}, {handle.size})")
        self.keep(program, number=number, kind="mapping", device=handle.device, size=handle.size)

    @rule(data=strategies.data())
    def retain(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "mapping")
        if one is None:
            return
        program, mapping = one
        number = next(self.numbers)
        self.must(program, f"retain({number}, {mapping.number})")
        self.keep(program, number=number, kind="handle", device=mapping.device, size=mapping.size)

    @rule(data=strategies.data())
    def release_or_unmap(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "handle", "tiles", "mapping")
        if one is None:
            return
        program, thing = one
        if thing.kind != "mapping":
            self.release(program, thing)
            return
        self.must(program, f"unmap({thing.number})")
        del program.things[thing.number]

    # Multicast objects.

    @rule(data=strategies.data(), pieces=SMALL)
    def make_multicast(self, data: strategies.DataObject, pieces: int) -> None:
        program = data.draw(strategies.sampled_from(self.programs))
        number = next(self.numbers)
        self.must(program, f"make_multicast({number}, {pieces * PIECE}, {DEVICES})")
        self.keep(program, number=number, kind="multicast", device=0, size=pieces * PIECE)

    @rule(data=strategies.data(), kind=strategies.sampled_from(["handle", "mapping"]))
    def bind(self, data: strategies.DataObject, kind: str) -> None:
        """It keeps what is bound to it, until it is unbound or the object ends."""
        fits = [
            (program, multicast, memory)
            for program in self.programs
            for multicast in program.of("multicast")
            for memory in program.of(kind)
            if memory.size <= multicast.size
        ]
        one = self.pick(data, fits)
        if one is None:
            return
        program, multicast, memory = one
        offset = data.draw(strategies.integers(0, (multicast.size - memory.size) // PIECE)) * PIECE
        for other in program.of("binding"):
            beside = (other.inside, other.device) != (multicast.number, memory.device)
            if not beside and other.offset < offset + memory.size and offset < other.offset + other.size:
                return
        call = f"bind({multicast.number}, {offset}, {memory.number}, {memory.size})"
        if kind == "mapping":
            call = f"bind_mapping({multicast.number}, {offset}, {memory.number})"
        self.must(program, call)
        bound = replace(memory, number=next(self.numbers), kind="binding", inside=multicast.number, offset=offset)
        program.things[bound.number] = bound

    @rule(data=strategies.data())
    def unbind(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "binding")
        if one is None:
            return
        program, thing = one
        self.must(program, f"unbind({thing.inside}, {thing.device}, {thing.offset}, {thing.size})")
        del program.things[thing.number]

    @rule(data=strategies.data())
    def end_multicast(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "multicast")
        if one is None:
            return
        program, multicast = one
        self.must(program, f"release({multicast.number})")
        for thing in [multicast, *program.of("binding")]:
            if multicast.number in (thing.number, thing.inside):
                del program.things[thing.number]

    @rule(data=strategies.data())
    def map_multicast(self, data: strategies.DataObject) -> None:
        """A mapping of the object keeps it, and so what is bound to it."""
        one = self.chosen(data, "multicast")
        if one is None:
            return
        program, multicast = one
        number = next(self.numbers)
        self.must(program, f"map_handle({number}, {multicast.number}, {multicast.size})")
        self.keep(program, number=number, kind="window", device=0, size=multicast.size)

    @rule(data=strategies.data())
    def unmap_multicast(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "window")
        if one:
            self.must(one[0], f"unmap({one[1].number})")
            del one[0].things[one[1].number]

    # Sparse arrays.

    @rule(data=strategies.data(), tiles=strategies.integers(1, 3), levels=strategies.integers(0, 1))
    def take_sparse(self, data: strategies.DataObject, tiles: int, levels: int) -> None:
        one = self.in_context(data)
        if one is None:
            return
        program, thread, context, device = one
        number = next(self.numbers)
        self.must(program, f"take_sparse({number}, {tiles}, {levels})", thread)
        owner = self.owner(program, context)
        self.keep(program, number=number, kind="sparse", device=device, context=owner, size=tiles)

    @rule(data=strategies.data(), pieces=SMALL, keep=strategies.booleans(), unmap=strategies.booleans())
    def map_tile(self, data: strategies.DataObject, pieces: int, keep: bool, unmap: bool) -> None:
        """A tile keeps its memory until it is mapped to other memory, unmapped, or the array ends."""
        one = self.chosen(data, "sparse")
        if one is None or not self.use_own(*one):
            return
        program, array = one
        x, y = (data.draw(strategies.integers(0, array.size - 1)) for _ in range(2))
        if unmap:
            self.must(program, f"map_tile({array.number}, {x}, {y}, None)")
            return
        pool = self.pick(data, [None, *(thing for thing in program.of("tiles") if thing.device == array.device)])
        if pool is None:
            number, size = next(self.numbers), pieces * PIECE
            call = f"create_tile_pool({number}, {size}, {array.device})"
            if not self.granted(program.client.run(call), array.device, size):
                return
            self.keep(program, number=number, kind="tiles", device=array.device, size=size)
            pool = program.things[number]
        self.must(program, f"map_tile({array.number}, {x}, {y}, {pool.number})")
        if not keep:
            self.release(program, pool)

    def release(self, program: Program, thing: Thing) -> None:
        self.must(program, f"release({thing.number})")
        del program.things[thing.number]

    # Graphs.

    @rule(data=strategies.data(), sizes=strategies.lists(SIZES, min_size=1, max_size=3), freed=strategies.booleans())
    def make_graph(self, data: strategies.DataObject, sizes: list[int], freed: bool) -> None:
        one = self.in_context(data)
        if one is None:
            return
        program, thread, context, device = one
        number = next(self.numbers)
        self.must(program, f"make_graph({number}, {sizes}, {freed})", thread)
        size = sum(map(whole_pieces, sizes))
        owner = self.owner(program, context)
        self.keep(program, number=number, kind="graph", device=device, context=owner, size=size)

    @rule(data=strategies.data())
    def launch_graph(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "graph")
        if one and self.use_own(*one):
            program, graph = one
            self.granted(program.client.run(f"launch_graph({graph.number})"), graph.device, graph.size)

    @rule(data=strategies.data())
    def end_graph(self, data: strategies.DataObject) -> None:
        one = self.chosen(data, "graph")
        if one and self.use_own(*one):
            program, graph = one
            self.must(program, f"end_graph({graph.number})")
            del program.things[graph.number]

    @rule(data=strategies.data(), device=strategies.integers(0, DEVICES - 1))
    def trim_graphs(self, data: strategies.DataObject, device: int) -> None:
        program = data.draw(strategies.sampled_from(self.programs))
        self.must(program, f"trim_graphs({device})")

    # What must hold.

    @invariant()
    def books_agree(self) -> None:
        for program in self.programs:
            for device in range(DEVICES):
                context = program.on(device)
                if context is not None:
                    self.queries_agree(program, context, device)
        region, books = self.container.region(), self.container.machine.all_books()
        for device in range(DEVICES):
            theirs = {entry["host_pid"]: entry for entry in books[device]["processes"]}
            ours = {process.host_pid: process.memory[device] for process in region.processes if process.memory}
            for program in self.programs:
                pid = program.client.pid
                self.compare(program, device, ours.get(pid), theirs.get(pid))
            lanes = self.container.lanes(device)
            assert self.total(device) == sum(lanes.values()), "the total is not the sum of the lanes"
            assert self.total(device) - sum(use.context for use in ours.values()) <= LIMIT

    def queries_agree(self, program: Program, context: int, device: int) -> None:
        program.client.run(f"use({context})", THREADS)
        free, total = program.client.run("info()", THREADS)
        assert total == LIMIT
        assert free == max(0, LIMIT - self.total(device))

    def compare(self, program: Program, device: int, ours: Any, theirs: Any) -> None:
        kinds = theirs["by_kind"] if theirs else {}
        asked = theirs["requested_bytes"] if theirs else 0
        managed = sum(thing.size for thing in program.of("take_managed") if thing.device == device)
        buffers = asked + managed + sum(kinds.get(kind, 0) for kind in ("array", "pool", "graph", "virtual"))
        held = ours.buffer if ours else 0
        assert held == buffers, f"device {device}: charged {held}, the driver holds {buffers}: {kinds}"
        # Units of the driver beyond what was asked for, and late code: charged only if a refusal has found them.
        rounding = kinds.get("linear", 0) - asked
        late = sum(
            PIECE for thing in program.of("module") if thing.number in program.launched and thing.device == device
        )
        overhead = kinds.get("context", 0) + kinds.get("module", 0)
        context = ours.context if ours else 0
        assert overhead - late <= context <= overhead + rounding, f"device {device}: overhead {context} for {kinds}"

    def teardown(self) -> None:
        for program in self.programs:
            program.client.kill()
        for orphan in self.orphans:
            os.kill(orphan, signal.SIGKILL)
        self.programs = []


@pytest.fixture(scope="module")
def books() -> Iterator[type[Books]]:
    """The machine with a container to run in: one for all examples, so each finds what the last one left."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        cards = [Card(extra=HOPPER), Card(uuid=SECOND_CARD.uuid, extra=HOPPER)]
        machine = make_machine(folder, *cards, cuda="13.0")
        machine.nvidia_smi("-L")
        Books.container = make_container(machine, folder / "vgpu", memory="4096m", devices="2")
        Books.server = Server(Books.container.environment())
        try:
            yield Books
        finally:
            Books.server.close()


def run(books: type[Books], examples: int, steps: int, *, same_each_time: bool) -> None:
    run_state_machine_as_test(
        books,
        settings=hypothesis.settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=same_each_time,
            database=None,
            phases=PHASES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_region_says_what_the_driver_holds(books: type[Books]) -> None:
    run(books, 15, 50, same_each_time=True)


@pytest.mark.soak
def test_the_region_says_what_the_driver_holds_at_length(books: type[Books]) -> None:
    run(books, 150, 60, same_each_time=False)
