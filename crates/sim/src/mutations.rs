//! Rules left out of the core on purpose, to see that the simulation misses them.
//!
//! A mutation is a `--cfg mutation="NAME"` of a build of its own; `core` has no other conditional code. None is built in
//! yet: the switches belong into the files named here, one line each. Until then the same is done with patches; so many of
//! 200 seeds of the profile fail when the rule of the right column is taken out.
//!
//! | name | rule left out | where | caught by |
//! | --- | --- | --- | --- |
//! | `M1` | a hole behind the position uncovers it (D.6) | `journal::coverage` | history, mixed |
//! | `M2` | a hole before X gives positions up (D.6) | `replica::takeover::hole_opened` | history |
//! | `M9` | the epoch grows with the creation of the Lease (D.1) | `Epoch::acquire` | lease |
//! | `deadline` | leadership counts from sending, not from the answer (D.1) | `elector::acquired`, `renewed` | lease |
//! | `gate` | a frame leaves only through the gate (A5) | `Gate::check` | lease, network |
//! | `reset` | a position that was given up stays so until its snapshot is acked (D.5) | `Subscription::ack` | overflow |
//! | `window` | a feed that was given up owes no ack | `Session::wait` | overflow, 14 of 200 |
//! | `readers` | readers at the end are not given up | `replica::pressure` | overflow, 3 of 200 |
