//! Certificates, keys and kubeconfigs of a cluster, made by openssl. The listwatch server and kube-apiserver get the
//! same files, so that the components cannot distinguish the two by their credentials.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::failure::Outcome;
use crate::process::Run;
use crate::tools;

/// The bearer token of the administrator that drives the scenarios.
const ADMIN_TOKEN: &str = "e2e-administrator";
/// Days for which the certificates are valid.
const DAYS: &str = "2";

/// A directory of certificates and keys.
#[derive(Clone)]
pub(crate) struct Pki {
    dir: PathBuf,
    openssl: PathBuf,
}

impl Pki {
    /// Makes the files that do not depend on the number of nodes.
    pub(crate) fn new(dir: &Path) -> Outcome<Self> {
        let pki = Self::empty(dir)?;
        pki.authority("ca")?;
        pki.authority("front-proxy-ca")?;
        let names = "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1";
        pki.sign("ca", "apiserver", "kube-apiserver", "", names)?;
        pki.sign("ca", "metrics", "metrics", "", "DNS:metrics.kube-system.svc,DNS:localhost")?;
        pki.sign("front-proxy-ca", "front-proxy-client", "front-proxy-client", "", "")?;
        pki.sign("ca", "controller-manager", "system:kube-controller-manager", "", "")?;
        pki.sign("ca", "scheduler", "system:kube-scheduler", "", "")?;
        pki.sign("ca", "proxy", "system:kube-proxy", "", "")?;
        pki.openssl(["genrsa", "-out", "sa.key", "2048"])?;
        pki.openssl(["rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"])?;
        std::fs::write(pki.file("tokens.csv"), format!("{ADMIN_TOKEN},e2e-administrator,1,system:masters\n"))?;
        Ok(pki)
    }

    /// A directory without files.
    pub(crate) fn empty(dir: &Path) -> Outcome<Self> {
        std::fs::create_dir_all(dir)?;
        let openssl = tools::on_path("openssl").ok_or("openssl is needed: install it, then try again")?;
        Ok(Self { dir: dir.to_owned(), openssl })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A kubeconfig in `dir` with the administrator's token.
    pub(crate) fn admin_kubeconfig(&self, dir: &Path, port: u16) -> Outcome<PathBuf> {
        self.kubeconfig(dir, "admin", port, &json!({"token": ADMIN_TOKEN}))
    }

    /// A kubeconfig in `dir` with the certificate `name`.
    pub(crate) fn component_kubeconfig(&self, dir: &Path, name: &str, port: u16) -> Outcome<PathBuf> {
        let user = json!({
            "client-certificate": self.file(&format!("{name}.crt")),
            "client-key": self.file(&format!("{name}.key")),
        });
        self.kubeconfig(dir, name, port, &user)
    }

    /// The certificate of a kubelet, made at its first use.
    pub(crate) fn node(&self, node: &str) -> Outcome<()> {
        if self.file(&format!("{node}.crt")).is_file() {
            return Ok(());
        }
        self.sign("ca", node, &format!("system:node:{node}"), "system:nodes", "")
    }

    fn kubeconfig(&self, dir: &Path, name: &str, port: u16, user: &serde_json::Value) -> Outcome<PathBuf> {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "e2e",
            "clusters": [{"name": "e2e", "cluster": {
                "server": format!("https://127.0.0.1:{port}"), "certificate-authority": self.file("ca.crt")}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
        });
        let file = dir.join(format!("{name}-{port}.kubeconfig"));
        std::fs::write(&file, config.to_string())?;
        Ok(file)
    }

    /// Makes an authority: `NAME.crt` and `NAME.key`.
    pub(crate) fn authority(&self, name: &str) -> Outcome<()> {
        let extensions = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign,digitalSignature\n\
                          subjectKeyIdentifier=hash\n";
        self.request(name, name, "", extensions, &[])
    }

    /// Makes a certificate and its key, `FILE.crt` and `FILE.key`, for the user `name` and the alternative `names`.
    pub(crate) fn sign(&self, authority: &str, file: &str, name: &str, organization: &str, names: &str) -> Outcome<()> {
        let mut extensions = "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n\
                              extendedKeyUsage=serverAuth,clientAuth\nsubjectKeyIdentifier=hash\n\
                              authorityKeyIdentifier=keyid\n"
            .to_owned();
        if !names.is_empty() {
            extensions += &format!("subjectAltName={names}\n");
        }
        let (certificate, key) = (format!("{authority}.crt"), format!("{authority}.key"));
        self.request(file, name, organization, &extensions, &["-CA", &certificate, "-CAkey", &key])
    }

    /// Makes a key and a certificate of it.
    fn request(&self, file: &str, name: &str, organization: &str, extensions: &str, signer: &[&str]) -> Outcome<()> {
        let organization = if organization.is_empty() { String::new() } else { format!("O={organization}\n") };
        let settings = format!(
            "[req]\nprompt=no\ndistinguished_name=name\nx509_extensions=extensions\n\
             [name]\n{organization}CN={name}\n[extensions]\n{extensions}"
        );
        std::fs::write(self.file(&format!("{file}.cnf")), settings)?;
        let (config, key, certificate) = (format!("{file}.cnf"), format!("{file}.key"), format!("{file}.crt"));
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        let files = ["-config", &config, "-keyout", &key, "-out", &certificate];
        self.openssl(
            ["req", "-x509", "-days", DAYS].into_iter().chain(curve).chain(files).chain(signer.iter().copied()),
        )
    }

    fn openssl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Outcome<()> {
        Run::new(&self.openssl).dir(&self.dir).args(args).text().map(drop)
    }
}
