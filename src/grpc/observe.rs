//! What the server tells whoever counts: the seam to metrics, which are defined elsewhere.

use std::fmt;
use std::sync::Arc;

use tonic::{Code, Status};

/// Something that happened and can be counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Observation {
    /// A frame was handed to HTTP/2.
    FrameSent {
        /// Durable subscription of the session, none if ephemeral.
        subscription: Option<Arc<str>>,
        /// Size of its message.
        bytes: usize,
    },
    /// A call was answered, or a stream was ended by the server. A stream that the client leaves has no code.
    CallEnded {
        /// Name of the method, from a closed set.
        method: &'static str,
        /// How it ended.
        code: Code,
    },
}

impl Observation {
    /// The end of a unary call.
    pub fn call_ended<T>(method: &'static str, answer: &Result<T, Status>) -> Self {
        Self::CallEnded { method, code: answer.as_ref().err().map_or(Code::Ok, Status::code) }
    }
}

/// Takes observations. Called on the data path: it must neither block nor wait.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(Observation) + Send + Sync>);

impl Observer {
    /// An observer that calls `observe`.
    pub fn new(observe: impl Fn(Observation) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    /// Tells it.
    pub fn observe(&self, observation: Observation) {
        (self.0)(observation);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
