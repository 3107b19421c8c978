//! Rules left out of the core on purpose, to see that the simulation misses them.
//!
//! A mutation is a `--cfg mutation="NAME"` in a build of its own; the core has no other conditional code:
//!
//! ```text
//! RUSTFLAGS='--cfg mutation="M1"' cargo run --release --target-dir target/mutation -p sidewatch-sim -- --seeds 400 --profile crash
//! ```
//!
//! | name | rule left out | where | caught, of so many seeds |
//! | --- | --- | --- | --- |
//! | `M1` | a hole behind a position uncovers it (D.6) | `Journal::coverage` | crash: 12 of 400, I7; overflow: 4 of 400, I1 |
//! | `M2` | a hole before X gives positions up (D.6) | `Replica::hole_opened` | crash: 2 of 1000, I7 |
//! | `M5` | a relist compares uids, not names (D.2-5) | `feed::relist::diff` | history: 78 of 400, I7 |
//! | `M9` | the epoch grows with the creation of the Lease (D.1) | `Epoch::acquire` | lease: all, I5 |
//! | `M11` | a reset ends only with an ack of its snapshot (D.5) | `Subscription::ack` | overflow: 18 of 1000, I6 |
//! | `M12` | a reset snapshot waits for X (D.6, I10) | `Replica::plan_durable` | crash: 244 of 1000, I10 |
//! | `deadline` | leadership counts from sending, not from the answer (D.1) | `Elector::acquired`, `renewed` | network: 7 of 1000, I5 |
//! | `gate` | a frame leaves only through the gate (A5) | `Gate::check` | lease: 65 of 1000, I5 |
//!
//! The names with a number are those of the model that the protocol was first checked with (D.10). `M3`, `M6`, `M7`, `M8`
//! and `M10` of that list have no switch.
