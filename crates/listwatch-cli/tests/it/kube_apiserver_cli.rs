//! Runs `listwatch kube-apiserver` as a process: the kubeadm command line, certificates, tokens, and the shutdown.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

const NAMESPACES: &str = "GET /api/v1/namespaces";
const WHO_AM_I: &str = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";

/// The files of kubeadm's `/etc/kubernetes/pki` that the server reads.
struct Pki {
    dir: TempDir,
}

impl Pki {
    fn new() -> Self {
        let pki = Pki { dir: tempfile::tempdir().expect("a directory") };
        for ca in ["ca", "other-ca", "front-proxy-ca"] {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, ca);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().expect("a key");
            pki.write(ca, &params.self_signed(&key).expect("a certificate").pem(), &key);
        }
        pki.sign("ca", "apiserver", &[], &["127.0.0.1"]);
        pki.sign("front-proxy-ca", "front-proxy-client", &[], &[]);
        pki.sign("ca", "apiserver-kubelet-client", &["system:masters"], &[]);
        pki
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn write(&self, name: &str, certificate: &str, key: &KeyPair) {
        std::fs::write(self.path(&format!("{name}.crt")), certificate).expect("written");
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("written");
    }

    fn sign(&self, ca: &str, name: &str, organizations: &[&str], addresses: &[&str]) {
        let addresses: Vec<String> = addresses.iter().map(|&address| address.to_owned()).collect();
        let mut params = CertificateParams::new(addresses).expect("addresses");
        params.distinguished_name.push(DnType::CommonName, name);
        for organization in organizations {
            params.distinguished_name.push(DnType::OrganizationName, *organization);
        }
        let mut issuer = CertificateParams::default();
        issuer.distinguished_name.push(DnType::CommonName, ca);
        let issuer_key = std::fs::read_to_string(self.path(&format!("{ca}.key"))).expect("the key of the CA");
        let issuer_key = KeyPair::from_pem(&issuer_key).expect("a key");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &Issuer::from_params(&issuer, &issuer_key)).expect("a certificate");
        self.write(name, &certificate.pem(), &key);
    }

    /// Sends a request with the certificate of `user`, or without a certificate. Returns the status code and the body.
    fn send(&self, port: u16, user: Option<&str>, line: &str, token: Option<&str>) -> (u16, Value) {
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        self.send_with(port, user, line, &token)
    }

    /// Sends a request as [`Pki::send`] does, with these lines of headers.
    fn send_with(&self, port: u16, user: Option<&str>, line: &str, headers: &str) -> (u16, Value) {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.crt")).expect("the CA")).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_root_certificates(roots);
        let config = match user {
            Some(user) => {
                let chain = CertificateDer::from_pem_file(self.path(&format!("{user}.crt"))).expect("a certificate");
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{user}.key"))).expect("a key");
                config.with_client_auth_cert(vec![chain], key).expect("a client certificate")
            }
            None => config.with_no_client_auth(),
        };
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut stream = StreamOwned::new(connection, socket);
        let body = if line.starts_with("POST") { "{}" } else { "" };
        let request = format!(
            "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a response");
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
        (code, serde_json::from_str(body).unwrap_or_else(|_| json!(body)))
    }

    /// The command line of kubeadm's manifest, with these files and with a store in memory instead of etcd.
    fn kubeadm(&self, port: u16) -> Vec<String> {
        let file = |name: &str| self.path(name).display().to_string();
        vec![
            "--advertise-address=127.0.0.1".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            format!("--client-ca-file={}", file("ca.crt")),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--enable-bootstrap-token-auth=true".to_owned(),
            "--storage-backend=memory".to_owned(),
            format!("--kubelet-client-certificate={}", file("apiserver-kubelet-client.crt")),
            format!("--kubelet-client-key={}", file("apiserver-kubelet-client.key")),
            "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname".to_owned(),
            format!("--proxy-client-cert-file={}", file("front-proxy-client.crt")),
            format!("--proxy-client-key-file={}", file("front-proxy-client.key")),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            format!("--requestheader-client-ca-file={}", file("front-proxy-ca.crt")),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            format!("--secure-port={port}"),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            // Any key signs tokens; this one saves another file.
            format!("--service-account-key-file={}", file("front-proxy-client.key")),
            format!("--service-account-signing-key-file={}", file("front-proxy-client.key")),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
        ]
    }
}

fn command(arguments: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_listwatch"));
    command.arg("kube-apiserver").args(arguments).stdin(Stdio::null());
    command
}

fn output(arguments: &[String]) -> Output {
    command(arguments).output().expect("the binary runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn free_port() -> u16 {
    listwatch_test_ports::free_port().expect("a free port")
}

/// A server process, which is killed when the value is dropped.
struct Server {
    process: Child,
    log: String,
}

impl Server {
    /// Starts a server and waits until it is ready.
    fn start(arguments: &[String]) -> Self {
        let process = command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a process");
        let mut server = Server { process, log: String::new() };
        let mut lines = BufReader::new(server.process.stderr.take().expect("a pipe"));
        while !server.log.contains("serving on") {
            let read = lines.read_line(&mut server.log).expect("the log");
            assert!(read > 0, "the server ended: {}", server.log);
        }
        // The pipe must stay open and be read, or else the server would block on its log.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        server
    }

    fn terminate(mut self) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
        let began = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("a status") {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn command_line_with_an_unenforced_flag_is_refused_without_allow_unenforced() {
    let pki = Pki::new();
    let mut arguments = pki.kubeadm(free_port());
    arguments.push("--egress-selector-config-file=/egress".to_owned());
    arguments.push("--enable-admission-plugins=ImagePolicyWebhook".to_owned());
    let refused = output(&arguments);
    let text = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    for expected in [
        "--egress-selector-config-file: /egress is not enforced",
        "--enable-admission-plugins: ImagePolicyWebhook",
        "add --allow-unenforced",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn kubeadm_command_line_serves_client_certificates() {
    let pki = Pki::new();
    pki.sign("ca", "kubernetes-admin", &["kubeadm:cluster-admins"], &[]);
    pki.sign("ca", "kubernetes-super-admin", &["system:masters"], &[]);
    pki.sign("other-ca", "stranger", &["system:masters"], &[]);
    let port = free_port();
    pki.sign("ca", "system:node:a", &["system:nodes"], &[]);
    let mut arguments = pki.kubeadm(port);
    std::fs::write(pki.path("tokens.csv"), "t0ken,joe,7,\"dev,ops\"\n").expect("written");
    arguments.push(format!("--token-auth-file={}", pki.path("tokens.csv").display()));
    let server = Server::start(&arguments);
    assert!(!server.log.contains("NOT ENFORCED"), "{}", server.log);
    assert!(server.log.contains("--advertise-address: 127.0.0.1 is not published"), "{}", server.log);

    let (code, me) = pki.send(port, Some("kubernetes-admin"), WHO_AM_I, None);
    let user = &me["status"]["userInfo"];
    assert_eq!((code, &user["username"]), (201, &json!("kubernetes-admin")), "{me}");
    assert_eq!(user["groups"], json!(["kubeadm:cluster-admins", "system:authenticated"]));
    let (code, namespaces) = pki.send(port, Some("kubernetes-super-admin"), NAMESPACES, None);
    assert_eq!((code, &namespaces["kind"]), (200, &json!("NamespaceList")), "{namespaces}");
    let (code, status) = pki.send(port, Some("kubernetes-admin"), NAMESPACES, None);
    let text = "namespaces is forbidden: User \"kubernetes-admin\" cannot list resource \"namespaces\" in API group \"\" at the cluster scope";
    assert_eq!((code, &status["message"]), (403, &json!(text)), "kubeadm binds its group later");
    for (user, line, token, expected) in [
        (Some("stranger"), NAMESPACES, None, 401),
        // The Node authorizer allows a kubelet to read its own object, which does not exist yet.
        (Some("system:node:a"), "GET /api/v1/nodes/a", None, 404),
        (Some("system:node:a"), "GET /api/v1/nodes/b", None, 403),
        (Some("system:node:a"), NAMESPACES, None, 403),
        (None, NAMESPACES, None, 403),
        (None, "GET /api", None, 403),
        (None, NAMESPACES, Some("wrong"), 401),
        (None, NAMESPACES, Some("t0ken"), 403),
        (None, "GET /api", Some("t0ken"), 200),
        (Some("stranger"), "GET /api", Some("t0ken"), 200),
        (None, "GET /readyz", None, 200),
    ] {
        let (code, answer) = pki.send(port, user, line, token);
        assert_eq!(code, expected, "{user:?} {line}: {answer}");
    }
    let accept = "Accept: application/json;g=config.k8s.io;v=v1beta1;as=Flagz\r\n";
    assert_eq!(pki.send_with(port, Some("kubernetes-admin"), "GET /flagz", accept).0, 403);
    let (code, page) = pki.send_with(port, Some("kubernetes-super-admin"), "GET /flagz", accept);
    let flags =
        ["secure-port", "authorization-mode", "event-ttl", "controllers"].map(|flag| page["flags"][flag].as_str());
    assert_eq!((code, flags), (200, [Some(&*port.to_string()), Some("Node,RBAC"), Some("1h0m0s"), Some("")]), "{page}");
    assert!(server.terminate().success());
}

#[test]
fn user_headers_are_accepted_only_from_a_front_proxy() {
    let pki = Pki::new();
    pki.sign("ca", "jane", &[], &[]);
    pki.sign("front-proxy-ca", "other-name", &[], &[]);
    // A user with the name of the front proxy, and a front proxy of another CA.
    for (ca, file) in [("ca", "user"), ("other-ca", "stranger")] {
        pki.sign(ca, "front-proxy-client", &[], &[]);
        for ending in ["crt", "key"] {
            let (from, to) = (format!("front-proxy-client.{ending}"), format!("{file}.{ending}"));
            std::fs::rename(pki.path(&from), pki.path(&to)).expect("renamed");
        }
    }
    pki.sign("front-proxy-ca", "front-proxy-client", &[], &[]);
    let port = free_port();
    let mut arguments = pki.kubeadm(port);
    arguments.push("--allow-unenforced".to_owned());
    let server = Server::start(&arguments);
    let headers = "X-Remote-User: bob\r\nX-Remote-Group: dev\r\nX-Remote-Extra-Scope: a\r\n";
    let (code, me) = pki.send_with(port, Some("front-proxy-client"), WHO_AM_I, headers);
    let bob = json!({"username": "bob", "groups": ["dev", "system:authenticated"], "extra": {"scope": ["a"]}});
    assert_eq!((code, &me["status"]["userInfo"]), (201, &bob), "{me}");
    let name = |sender: Option<&str>, headers: &str| {
        let (code, me) = pki.send_with(port, sender, WHO_AM_I, headers);
        (code, me["status"]["userInfo"]["username"].as_str().map(str::to_owned))
    };
    assert_eq!(name(Some("jane"), headers), (201, Some("jane".to_owned())), "a user stays the user");
    assert_eq!(name(Some("user"), headers), (201, Some("front-proxy-client".to_owned())), "the CA of users");
    for (sender, code) in [(None, 403), (Some("stranger"), 401), (Some("other-name"), 401)] {
        assert_eq!(name(sender, headers), (code, None), "{sender:?}: without a certificate, the request is anonymous");
    }
    assert_eq!(name(Some("front-proxy-client"), "X-Remote-Group: system:masters\r\n"), (401, None), "no name");
    let map = "GET /api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let masters = "X-Remote-User: bob\r\nX-Remote-Group: system:masters\r\n";
    let (_, map) = pki.send_with(port, Some("front-proxy-client"), map, masters);
    assert_eq!(map["data"]["requestheader-allowed-names"], r#"["front-proxy-client"]"#, "{map}");
    let ca = std::fs::read_to_string(pki.path("front-proxy-ca.crt")).expect("the CA");
    assert_eq!(map["data"]["requestheader-client-ca-file"].as_str().map(str::trim), Some(ca.trim()), "{map}");
    assert!(server.terminate().success());
}

#[test]
fn start_is_refused_if_every_user_could_act_as_a_front_proxy() {
    let pki = Pki::new();
    let mut arguments = pki.kubeadm(free_port());
    arguments.retain(|argument| !argument.starts_with("--requestheader-allowed-names"));
    arguments.push("--allow-unenforced".to_owned());
    arguments.push(format!("--requestheader-client-ca-file={}", pki.path("ca.crt").display()));
    let refused = output(&arguments);
    let text = stderr(&refused);
    assert!(refused.status.code() == Some(1) && text.contains("contain overlapping certificates"), "{text}");
}

#[test]
fn check_flags_prints_each_flag_and_starts_nothing() {
    let pki = Pki::new();
    let port = free_port();
    let mut arguments = pki.kubeadm(port);
    arguments.push("--check-flags".to_owned());
    assert_eq!(output(&arguments).status.code(), Some(0), "kubeadm's manifest starts");
    arguments.push("--egress-selector-config-file=/egress".to_owned());
    let checked = output(&arguments);
    let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(1), "{printed}");
    assert!(printed.contains("not enforced  --egress-selector-config-file: /egress"), "{printed}");
    assert!(printed.contains("warning       --advertise-address"), "{printed}");
    arguments.push("--allow-unenforced".to_owned());
    assert_eq!(output(&arguments).status.code(), Some(0));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn kubeconfig_of_a_self_created_certificate_authenticates_the_administrator() {
    let pki = Pki::new();
    let (port, kubeconfig) = (free_port(), pki.path("kubeconfig"));
    let server = Server::start(&[
        "--storage-backend=memory".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", pki.path("own").display()),
        format!("--kubeconfig-out={}", kubeconfig.display()),
    ]);
    let token = token_of(&kubeconfig);
    // The server's own CA replaces the operator's CA.
    std::fs::copy(pki.path("own/ca.crt"), pki.path("ca.crt")).expect("the CA");
    let (code, answer) = pki.send(port, None, NAMESPACES, Some(&token));
    assert_eq!(code, 200, "{answer}");
    assert!(server.terminate().success());
}

#[test]
fn sigterm_right_after_the_server_is_ready_stops_it_gracefully() {
    let pki = Pki::new();
    for attempt in 0..10 {
        let server = Server::start(&[
            "--storage-backend=memory".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", free_port()),
            format!("--cert-dir={}", pki.path("own").display()),
        ]);
        let status = server.terminate();
        assert!(status.success(), "start {attempt}: {status}");
    }
}

/// envtest puts its certificate into `--cert-dir` and trusts no other.
#[test]
fn certificate_pair_in_cert_dir_is_served() {
    let pki = Pki::new();
    pki.sign("ca", "admin", &["system:masters"], &[]);
    let port = free_port();
    let mut arguments = vec![
        "--storage-backend=memory".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", pki.path("").display()),
        format!("--client-ca-file={}", pki.path("ca.crt").display()),
    ];
    let server = Server::start(&arguments);
    let (code, answer) = pki.send(port, Some("admin"), NAMESPACES, None);
    assert_eq!(code, 200, "{answer}");
    assert!(server.terminate().success());

    arguments.push(format!("--kubeconfig-out={}", pki.path("kubeconfig").display()));
    let text = stderr(&output(&arguments));
    assert!(text.contains("--kubeconfig-out: the CA of"), "{text}");
    arguments.pop();
    std::fs::remove_file(pki.path("apiserver.key")).expect("removed");
    let refused = output(&arguments);
    let text = stderr(&refused);
    assert!(text.contains("apiserver.key, certificate and key must be supplied as a pair"), "{text}");
    assert_eq!(refused.status.code(), Some(1), "half a pair is an error");
}

fn token_of(kubeconfig: &Path) -> String {
    let text = std::fs::read_to_string(kubeconfig).expect("the kubeconfig");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("token: ")).expect("a token");
    line.to_owned()
}

#[test]
fn start_error_names_the_damaged_file_and_its_flag() {
    let pki = Pki::new();
    std::fs::write(pki.path("ca.crt"), "garbage").expect("written");
    let mut arguments = pki.kubeadm(free_port());
    arguments.push("--allow-unenforced".to_owned());
    let refused = output(&arguments);
    let text = stderr(&refused);
    assert!(refused.status.code() == Some(1) && text.contains("--client-ca-file"), "{text}");
    std::fs::write(pki.path("apiserver.key"), "garbage").expect("written");
    let text = stderr(&output(&arguments));
    assert!(text.contains("apiserver.key is not usable"), "{text}");
}
