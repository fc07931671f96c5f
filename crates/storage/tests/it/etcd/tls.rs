//! Connections to etcd over TLS: the required files, and their renewal.

use std::path::{Path, PathBuf};

use listwatch_meta::Revision;
use listwatch_storage::Storage;
use listwatch_storage::etcd3::{ConnectError, Etcd3, Etcd3Options};
use tempfile::TempDir;

use super::server::{self, Member};
use super::{binary, certainly_create, follow, open_watch, patient_options, pod, pods};

/// A certificate authority.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: rcgen::Issuer::new(params, key), pem }
    }

    /// Writes a certificate and its key to `NAME.crt` and `NAME.key`.
    fn issue(&self, dir: &Path, name: &str) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(dir.join(format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

/// The files of etcd and of its client.
struct Files {
    dir: TempDir,
}

impl Files {
    fn new(authority: &Authority) -> Self {
        let files = Files { dir: tempfile::tempdir().unwrap() };
        files.trust(&[authority]);
        authority.issue(files.dir.path(), "server");
        authority.issue(files.dir.path(), "client");
        files
    }

    /// Makes these the authorities that etcd and its client trust.
    fn trust(&self, authorities: &[&Authority]) {
        let pem: String = authorities.iter().map(|authority| &*authority.pem).collect();
        std::fs::write(self.path("ca.crt"), pem).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start_etcd(&self, binary: &Path) -> Member {
        let flag = |flag: &str, name: &str| format!("{flag}={}", self.path(name).display());
        Member::start_one(
            binary,
            &[
                &flag("--cert-file", "server.crt"),
                &flag("--key-file", "server.key"),
                &flag("--trusted-ca-file", "ca.crt"),
                "--client-cert-auth",
            ],
        )
    }

    fn options(&self, url: &str) -> Etcd3Options {
        let mut options = patient_options([url]);
        options.ca_file = Some(self.path("ca.crt"));
        options.cert_file = Some(self.path("client.crt"));
        options.key_file = Some(self.path("client.key"));
        options
    }
}

#[tokio::test]
async fn connection_requires_the_tls_files() {
    let Some(binary) = binary().filter(|_| !server::is_plain()) else { return };
    let files = Files::new(&Authority::new());
    let member = files.start_etcd(&binary);

    let mut options = patient_options([&*member.url]);
    let refused = Etcd3::connect(options.clone()).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Unreachable { .. }), "an unknown authority is not trusted: {refused:?}");
    options.ca_file = Some(files.path("ca.crt"));
    let refused = Etcd3::connect(options).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Unreachable { .. }), "etcd wants a certificate: {refused:?}");
    let store = Etcd3::connect(files.options(&member.url)).await.expect("all files are given");
    let mut watch = open_watch(&store, pods(), Revision::ZERO).await;
    let last = store.create(&pod("a"), "{}".into(), None).await.unwrap();
    assert_eq!(follow(&mut watch, last).await.len(), 1);
}

/// Replaces the authority in the three steps of a rotation: trust both, issue new certificates, trust the new one. etcd
/// reads its authorities at its start, so it restarts in each step. The client does not.
#[tokio::test]
async fn rotated_authority_and_certificates_are_used_without_a_restart_of_the_client() {
    let Some(binary) = binary().filter(|_| !server::is_plain()) else { return };
    let (old, new) = (Authority::new(), Authority::new());
    let files = Files::new(&old);
    let mut member = files.start_etcd(&binary);
    let store = Etcd3::connect(files.options(&member.url)).await.expect("all files are given");
    let mut watch = open_watch(&store, pods(), Revision::ZERO).await;

    let steps: [(&str, &dyn Fn()); 3] = [
        ("both authorities are trusted", &|| files.trust(&[&old, &new])),
        ("the certificates are new", &|| {
            new.issue(files.dir.path(), "server");
            new.issue(files.dir.path(), "client");
        }),
        ("only the new authority is trusted", &|| files.trust(&[&new])),
    ];
    for (number, (step, replace)) in steps.into_iter().enumerate() {
        member.kill();
        replace();
        member.start();
        let last = certainly_create(&store, &format!("p{number}")).await;
        assert_eq!(follow(&mut watch, last).await.len(), 1, "after: {step}");
    }
}
