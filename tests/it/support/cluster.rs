//! A real etcd and a real kube-apiserver, as processes of their own that a test can kill, restart and double.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::admin::Admin;
use super::process::Process;
use super::{check, wait_for};

/// The API server starts in 3 s on a quiet machine and was seen to take 17 s on a busy one.
const START_MAX: Duration = Duration::from_secs(90);

/// A cluster of one test. Dropping it ends its processes and removes its folder.
pub(crate) struct Cluster {
    programs: PathBuf,
    // Before the folder: fields are dropped in order, and the processes must end first.
    servers: Vec<Server>,
    etcd: Option<Process>,
    folder: Folder,
}

struct Server {
    port: u16,
    flags: Vec<String>,
    kubeconfig: PathBuf,
    process: Option<Process>,
}

/// A folder with a short path, because paths of Unix sockets end at 107 characters.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sw-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::env::var_os("SIDEWATCH_TEST_KEEP").is_some() {
            eprintln!("kept: {}", self.0.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

impl Cluster {
    /// Starts etcd and one API server, and returns when it serves.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// As [`Self::start`], with more flags for the API server.
    pub(crate) async fn start_with(flags: &[&str]) -> Self {
        let mut cluster = Self { programs: programs(), servers: Vec::new(), etcd: None, folder: Folder::new() };
        cluster.start_etcd();
        cluster.add_server(flags).await;
        cluster
    }

    /// The folder of this cluster, for files of the test.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// The admin's kubeconfig of the first API server.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.servers[0].kubeconfig
    }

    /// An admin of the first API server.
    pub(crate) async fn admin(&self) -> Admin {
        Admin::new(self.kubeconfig()).await
    }

    /// Starts etcd, with the data that is there.
    pub(crate) fn start_etcd(&mut self) {
        let peer = format!("unix://{}", self.folder.0.join("peer.sock").display());
        let client = self.etcd_url();
        let mut command = Command::new(self.programs.join("etcd"));
        command
            .args([
                "--name",
                "default",
                "--unsafe-no-fsync",
                "--log-level",
                "error",
                "--quota-backend-bytes",
                "4294967296",
            ])
            .arg("--data-dir")
            .arg(self.folder.0.join("etcd"))
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        for socket in ["peer.sock", "etcd.sock"] {
            let _ = std::fs::remove_file(self.folder.0.join(socket));
        }
        self.etcd = Some(Process::start("etcd", &self.folder.0, &mut command));
    }

    /// Ends etcd at once.
    pub(crate) fn kill_etcd(&mut self) {
        self.etcd = None;
    }

    /// Starts one more API server on the same etcd; returns its number.
    pub(crate) async fn add_server(&mut self, flags: &[&str]) -> usize {
        let number = self.servers.len();
        let port = free_port();
        let kubeconfig = self.folder.0.join(format!("kubeconfig-{number}"));
        run(Command::new(self.programs.join("sidewatch-apiserver"))
            .arg("keys")
            .arg("-dir")
            .arg(&self.folder.0)
            .args(["-server", &format!("https://127.0.0.1:{port}")])
            .arg("-kubeconfig")
            .arg(&kubeconfig));
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.servers.push(Server { port, flags, kubeconfig, process: None });
        self.start_server(number).await;
        number
    }

    /// The admin's kubeconfig of this API server.
    pub(crate) fn kubeconfig_of(&self, number: usize) -> &Path {
        &self.servers[number].kubeconfig
    }

    /// URL of this API server, the same after each restart.
    pub(crate) fn url_of(&self, number: usize) -> String {
        format!("https://127.0.0.1:{}", self.servers[number].port)
    }

    /// Starts this API server, which does not run, and returns when it serves.
    pub(crate) async fn start_server(&mut self, number: usize) {
        let pki = self.folder.0.join("pki");
        let file = |flag: &str, name: &str| format!("--{flag}={}", pki.join(name).display());
        let server = &self.servers[number];
        let mut command = Command::new(self.programs.join("kube-apiserver"));
        command
            .args([
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                // A loopback address is no valid address of an Endpoints object.
                "--endpoint-reconciler-type=none",
                "--authorization-mode=RBAC",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--profiling=false",
                // Without it SIGTERM waits up to a minute for every open watch.
                "--shutdown-watch-termination-grace-period=1s",
                // Nothing makes the default service accounts here: pods do without.
                "--disable-admission-plugins=ServiceAccount",
            ])
            .arg(format!("--secure-port={}", server.port))
            .arg(format!("--etcd-servers={}", self.etcd_url()))
            .arg(file("tls-cert-file", "server.crt"))
            .arg(file("tls-private-key-file", "server.key"))
            .arg(file("client-ca-file", "ca.crt"))
            .arg(file("token-auth-file", "tokens.csv"))
            .arg(file("service-account-signing-key-file", "sa.key"))
            .arg(file("service-account-key-file", "sa.key"))
            .args(&server.flags);
        let mut process = Process::start(&format!("kube-apiserver-{number}"), &self.folder.0, &mut command);
        let admin = Admin::new(&server.kubeconfig).await;
        // `default` is made by the server itself, a moment after it is ready.
        wait_for("the API server", START_MAX, || {
            if let Some(status) = process.ended() {
                panic!("kube-apiserver ended with {status}:\n{}", process.tail());
            }
            let admin = admin.clone();
            async move {
                for path in ["/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"] {
                    let answer = admin.try_get(path).await?;
                    check(answer.status == 200, || format!("{path}: {} {}", answer.status, answer.body))?;
                }
                Ok(())
            }
        })
        .await;
        self.servers[number].process = Some(process);
    }

    /// Ends this API server at once.
    pub(crate) fn kill_server(&mut self, number: usize) {
        self.servers[number].process = None;
    }

    /// Ends this API server as an upgrade does: it tells its clients, then leaves.
    pub(crate) fn stop_server(&mut self, number: usize) {
        if let Some(mut process) = self.servers[number].process.take() {
            process.signal(Signal::TERM);
            process.wait(Duration::from_secs(30));
        }
    }

    /// Makes etcd forget all history, as the API server's own compactor does every five minutes.
    pub(crate) fn compact(&self) {
        run(Command::new(self.programs.join("sidewatch-apiserver")).args(["compact", "-etcd", &self.etcd_url()]));
    }

    /// A namespace of this name.
    pub(crate) async fn namespace(&self, name: &str) {
        self.admin().await.create("/api/v1/namespaces", json!({ "metadata": { "name": name } })).await;
    }

    /// A service account `name` that may do what the sidecar needs in these namespaces and nothing else; returns its uid.
    pub(crate) async fn service_account(&self, name: &str, home: &str, namespaces: &[&str]) -> String {
        let admin = self.admin().await;
        let account = admin
            .create(&format!("/api/v1/namespaces/{home}/serviceaccounts"), json!({ "metadata": { "name": name } }))
            .await;
        let subject = json!([{ "kind": "ServiceAccount", "name": name, "namespace": home }]);
        let role = |verbs: &[&str], group: &str, resources: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
        let read = ["get", "list", "watch"];
        for namespace in namespaces {
            let rules =
                json!([role(&read, "", &["configmaps", "pods", "secrets"]), role(&read, "example.com", &["widgets"])]);
            admin.bind(namespace, &format!("{name}-read"), rules, subject.clone()).await;
        }
        let lease = ["get", "list", "watch", "create", "update", "patch"];
        admin
            .bind(
                home,
                &format!("{name}-lease"),
                json!([role(&lease, "coordination.k8s.io", &["leases"])]),
                subject.clone(),
            )
            .await;
        account["metadata"]["uid"].as_str().expect("every object has a uid").to_owned()
    }

    /// A token of the service account that the API server accepts for this long.
    pub(crate) fn token(&self, namespace: &str, name: &str, uid: &str, expires: Duration) -> String {
        let text = run(Command::new(self.programs.join("sidewatch-apiserver"))
            .arg("token")
            .arg("-dir")
            .arg(&self.folder.0)
            .args(["-namespace", namespace, "-name", name, "-uid", uid])
            .args(["-expires", &format!("{}s", expires.as_secs())]));
        text.trim().to_owned()
    }

    /// A kubeconfig whose user reads its token from `token_file` each time it needs one, as in a pod.
    pub(crate) fn kubeconfig_with_token(&self, name: &str, token_file: &Path) -> PathBuf {
        let path = self.folder.0.join(name);
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters:\n- name: test\n  cluster: {{server: \"https://127.0.0.1:{}\", certificate-authority: \"{}\"}}\n\
             users:\n- name: test\n  user: {{tokenFile: \"{}\"}}\n\
             contexts:\n- name: test\n  context: {{cluster: test, user: test}}\n",
            self.servers[0].port,
            self.folder.0.join("pki/ca.crt").display(),
            token_file.display()
        );
        std::fs::write(&path, text).expect("the folder can be written");
        path
    }

    fn etcd_url(&self) -> String {
        format!("unix://{}", self.folder.0.join("etcd.sock").display())
    }
}

/// The folder of the programs: `make it` passes it on, else `ensure.sh` says (and builds what is missing).
fn programs() -> PathBuf {
    let ensure = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apiserver/ensure.sh");
    let folder = PathBuf::from(run(&mut Command::new(ensure)).trim());
    let ours = folder.join("sidewatch-apiserver");
    assert!(ours.exists(), "{}: is missing; unset KUBEBUILDER_ASSETS to have it built", ours.display());
    folder
}

/// Runs a program to its end and returns what it printed. Panics with its errors where it fails.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A port that nobody listens on, below those that the system gives to outgoing connections: an API server that is
/// restarted must find its own again.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(2_654_435_761) % 12_000;
    for _ in 0..12_000 {
        let offset = (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let port = 20_000 + u16::try_from(offset).expect("below 12 000");
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between 20000 and 32000");
}
