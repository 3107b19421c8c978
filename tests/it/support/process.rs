//! A program that a test started, and that ends with it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A running program; its output goes to a file that is printed when the test fails.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the program; what it prints goes to `NAME.log` in `folder`.
    pub(crate) fn start(name: &str, folder: &Path, command: &mut Command) -> Self {
        let log = folder.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).expect("the log can be written");
        let out = file.try_clone().expect("a file can be opened twice");
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: cannot be started: {error}"));
        Self { name: name.to_owned(), child, log }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id")).expect("not 0");
        // It may have ended by itself, which the test then sees.
        let _ = kill_process(pid, signal);
    }

    /// Ends it at once and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end. Panics when it takes longer.
    pub(crate) fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(begin.elapsed() < deadline, "{} still runs after {deadline:?}:\n{}", self.name, self.tail());
            std::thread::sleep(super::POLL);
        }
    }

    /// All that it printed.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last lines that it printed.
    pub(crate) fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- last lines of {} ({}):\n{}", self.name, self.log.display(), self.tail());
        }
    }
}
