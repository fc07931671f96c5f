//! Reading kubeconfig files: [`Kubeconfig`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde::Deserialize;

use super::{Auth, Config, ConfigError, Identity, Impersonation, TlsFiles, TlsOptions, parse_certificates, read};
#[cfg(feature = "exec")]
use super::{ExecPlugin, ExecVersion, InteractiveMode};
use crate::transport::{ProxyUrl, TransportOptions};

/// The cluster extension that is passed to exec plugins.
#[cfg(feature = "exec")]
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// One or several kubeconfig files, merged as by kubectl. The first entry of a name and the first
/// current context are used.
#[derive(Debug, Default)]
pub struct Kubeconfig {
    clusters: Vec<(String, Cluster, PathBuf)>,
    users: Vec<(String, User, PathBuf)>,
    contexts: Vec<(String, Context)>,
    current: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    clusters: Option<Vec<Named<Cluster>>>,
    #[serde(default)]
    users: Option<Vec<Named<User>>>,
    #[serde(default)]
    contexts: Option<Vec<Named<Context>>>,
    #[serde(default)]
    current_context: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "cluster", alias = "user", alias = "context")]
    value: Option<T>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    #[serde(default)]
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
    #[serde(default)]
    disable_compression: bool,
    #[cfg(feature = "exec")]
    #[serde(default)]
    extensions: Option<Vec<Extension>>,
}

#[cfg(feature = "exec")]
#[derive(Clone, Debug, Deserialize)]
struct Extension {
    name: String,
    #[serde(default)]
    extension: serde_json::Value,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<String>,
    #[serde(alias = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    username: Option<String>,
    password: Option<String>,
    #[serde(rename = "as")]
    as_user: Option<String>,
    as_uid: Option<String>,
    as_groups: Option<Vec<String>>,
    as_user_extra: Option<BTreeMap<String, Option<Vec<String>>>>,
    exec: Option<Exec>,
    auth_provider: Option<AuthProvider>,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("User(…)") // credentials do not belong into logs
    }
}

#[cfg(feature = "exec")]
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Exec {
    #[serde(default)]
    command: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
    #[serde(default)]
    api_version: String,
    interactive_mode: Option<InteractiveMode>,
    install_hint: Option<String>,
    #[serde(default)]
    provide_cluster_info: bool,
}

/// Replaces the full type in builds without the feature `exec`. The error message needs only these
/// fields.
#[cfg(not(feature = "exec"))]
#[derive(Clone, Deserialize)]
struct Exec {
    #[serde(default)]
    command: String,
}

#[cfg(feature = "exec")]
#[derive(Clone, Deserialize)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Clone, Deserialize)]
struct AuthProvider {
    #[serde(default)]
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Context {
    #[serde(default)]
    cluster: String,
    #[serde(default)]
    user: String,
    namespace: Option<String>,
}

impl Kubeconfig {
    /// Reads one file.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`] and [`ConfigError::Malformed`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = read(path)?;
        let mut merged = Kubeconfig::default();
        merged.add(path, &text)?;
        Ok(merged)
    }

    /// Reads and merges several files. Missing files are skipped, as by kubectl.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`] when no file exists or a file cannot be read, and
    /// [`ConfigError::Malformed`].
    pub fn read_all(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self, ConfigError> {
        let mut merged = Kubeconfig::default();
        let mut found = false;
        let mut missing = None;
        for path in paths.into_iter().filter(|path| !path.as_os_str().is_empty()) {
            match read(&path) {
                Ok(text) => {
                    merged.add(&path, &text)?;
                    found = true;
                }
                Err(ConfigError::Unreadable { path, source }) if source.kind() == std::io::ErrorKind::NotFound => {
                    missing.get_or_insert(ConfigError::Unreadable { path, source });
                }
                Err(error) => return Err(error),
            }
        }
        match missing {
            Some(error) if !found => Err(error),
            _ => Ok(merged),
        }
    }

    fn add(&mut self, path: &Path, text: &[u8]) -> Result<(), ConfigError> {
        let file: File = yaml_serde::from_slice(text).map_err(|error| ConfigError::Malformed {
            path: path.to_owned(),
            why: format!("no kubeconfig: {error}"),
            source: error.into(),
        })?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        for Named { name, value } in file.clusters.into_iter().flatten() {
            if self.clusters.iter().all(|(known, ..)| *known != name) {
                self.clusters.push((name, value.unwrap_or_default(), folder.clone()));
            }
        }
        for Named { name, value } in file.users.into_iter().flatten() {
            if self.users.iter().all(|(known, ..)| *known != name) {
                self.users.push((name, value.unwrap_or_default(), folder.clone()));
            }
        }
        for Named { name, value } in file.contexts.into_iter().flatten() {
            if self.contexts.iter().all(|(known, _)| *known != name) {
                self.contexts.push((name, value.unwrap_or_default()));
            }
        }
        if self.current.is_empty() {
            self.current = file.current_context.unwrap_or_default();
        }
        Ok(())
    }

    /// The names of the contexts, in file order.
    pub fn contexts(&self) -> impl Iterator<Item = &str> {
        self.contexts.iter().map(|(name, _)| name.as_str())
    }

    /// The name of the current context; empty when none is set.
    pub fn current_context(&self) -> &str {
        &self.current
    }

    /// The configuration of a context; `None` is the current one. For a server with an `http://` URL it has no
    /// credentials, client certificate or plugin, as in client-go.
    ///
    /// # Errors
    /// [`ConfigError`] when a referenced name or file is missing, or when the context requires an
    /// unsupported feature.
    pub fn config(&self, context: Option<&str>) -> Result<Config, ConfigError> {
        let unknown =
            |what, name: &str, known: Vec<String>| ConfigError::Unknown { what, name: name.to_owned(), known };
        let wanted = context.unwrap_or(&self.current);
        let Some((_, context)) = self.contexts.iter().find(|(name, _)| name == wanted) else {
            return Err(unknown("context", wanted, self.contexts().map(str::to_owned).collect()));
        };
        let Some((_, cluster, cluster_folder)) = self.clusters.iter().find(|(name, ..)| *name == context.cluster)
        else {
            let known = self.clusters.iter().map(|(name, ..)| name.clone()).collect();
            return Err(unknown("cluster", &context.cluster, known));
        };
        let proxy = match cluster.proxy_url.as_deref().filter(|url| !url.is_empty()) {
            Some(url) => Some(ProxyUrl::parse(url).map_err(|why| ConfigError::invalid("proxy-url", why))?),
            None => None,
        };
        let (auth, identity, impersonation, identity_files) =
            match self.users.iter().find(|(name, ..)| *name == context.user) {
                Some((_, user, folder)) => (
                    user.auth(folder, cluster, cluster_folder)?,
                    user.identity(folder)?,
                    user.impersonation()?,
                    user.identity_files(folder),
                ),
                None if context.user.is_empty() => (Auth::None, None, None, None),
                None => {
                    let known = self.users.iter().map(|(name, ..)| name.clone()).collect();
                    return Err(unknown("user", &context.user, known));
                }
            };
        let config = Config::new(&cluster.server)?;
        // As `ClientConfig` of clientcmd: user and certificates are only for a server that is reached over TLS. Anybody
        // on the path could read a credential. Impersonation is not secret.
        let is_tls = config.server.scheme_str() == Some("https");
        if !is_tls && (identity.is_some() || !matches!(auth, Auth::None)) {
            let (server, user) = (&cluster.server, &context.user);
            tracing::warn!(server, user, "the server is not reached over TLS, so no credentials are sent");
        }
        let authorities = match pem(
            cluster.certificate_authority_data.as_deref(),
            cluster.certificate_authority.as_deref(),
            cluster_folder,
            "certificate-authority-data",
        )? {
            Some((pem, what)) => parse_certificates(&pem, &what)?,
            None => Vec::new(),
        };
        let authority_file = only_file(&cluster.certificate_authority_data, &cluster.certificate_authority);
        let tls = TlsOptions {
            files: TlsFiles {
                authorities: authority_file.map(|file| cluster_folder.join(file)),
                identity: identity_files,
            },
            authorities,
            insecure_skip_verify: cluster.insecure_skip_tls_verify,
            server_name: cluster.tls_server_name.clone().filter(|name| !name.is_empty()),
            identity,
        };
        let (tls, auth) = if is_tls { (tls, auth) } else { (TlsOptions::default(), Auth::None) };
        Ok(Config {
            tls,
            auth,
            impersonation,
            namespace: context
                .namespace
                .clone()
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| "default".to_owned()),
            transport: TransportOptions { proxy, ..TransportOptions::default() },
            compression: config.compression && !cluster.disable_compression,
            ..config
        })
    }
}

#[cfg(feature = "exec")]
impl Cluster {
    /// The cluster information for an exec plugin, with the contents of referenced files.
    fn for_plugin(&self, folder: &Path) -> Result<serde_json::Value, ConfigError> {
        let authority = pem(
            self.certificate_authority_data.as_deref(),
            self.certificate_authority.as_deref(),
            folder,
            "certificate-authority-data",
        )?;
        let mut info = serde_json::Map::new();
        info.insert("server".to_owned(), self.server.clone().into());
        let mut put = |name: &str, value: Option<serde_json::Value>| {
            if let Some(value) = value {
                info.insert(name.to_owned(), value);
            }
        };
        put("tls-server-name", self.tls_server_name.clone().filter(|name| !name.is_empty()).map(Into::into));
        put("insecure-skip-tls-verify", self.insecure_skip_tls_verify.then(|| true.into()));
        let encoded = authority.map(|(pem, _)| base64::engine::general_purpose::STANDARD.encode(pem));
        put("certificate-authority-data", encoded.map(Into::into));
        put("proxy-url", self.proxy_url.clone().filter(|url| !url.is_empty()).map(Into::into));
        put("disable-compression", self.disable_compression.then(|| true.into()));
        let extensions = self.extensions.iter().flatten();
        let mut own = extensions.filter(|extension| extension.name == EXEC_EXTENSION).map(|own| own.extension.clone());
        put("config", own.next_back());
        Ok(info.into())
    }
}

#[cfg(feature = "exec")]
impl Exec {
    fn auth(&self, folder: &Path, cluster: &Cluster, cluster_folder: &Path) -> Result<Auth, ConfigError> {
        Ok(Auth::Exec(Box::new(self.plugin(folder, cluster, cluster_folder)?)))
    }

    fn plugin(&self, folder: &Path, cluster: &Cluster, cluster_folder: &Path) -> Result<ExecPlugin, ConfigError> {
        let invalid = |what: &str, why: &str| {
            ConfigError::invalid(format!("{what} of the exec credential plugin {:?}", self.command), why)
        };
        if self.command.is_empty() {
            return Err(invalid("the command", "is empty"));
        }
        let version = ExecVersion::parse(&self.api_version).ok_or_else(|| {
            let both = "is neither client.authentication.k8s.io/v1 nor client.authentication.k8s.io/v1beta1";
            invalid("the apiVersion", both)
        })?;
        let interactive = match (self.interactive_mode, version) {
            (Some(mode), _) => mode,
            (None, ExecVersion::V1Beta1) => InteractiveMode::IfAvailable,
            (None, ExecVersion::V1) => {
                return Err(invalid("the interactiveMode", "has to be given: Never, IfAvailable or Always"));
            }
        };
        let variables = self.env.iter().flatten();
        Ok(ExecPlugin {
            // A path is relative to the kubeconfig; a bare name is searched in PATH.
            command: if self.command.contains('/') { folder.join(&self.command) } else { self.command.clone().into() },
            args: self.args.clone().unwrap_or_default(),
            env: variables.map(|variable| (variable.name.clone(), variable.value.clone())).collect(),
            version,
            interactive,
            install_hint: self.install_hint.clone().unwrap_or_default(),
            cluster: self.provide_cluster_info.then(|| cluster.for_plugin(cluster_folder)).transpose()?,
        })
    }
}

#[cfg(not(feature = "exec"))]
impl Exec {
    fn auth(&self, _: &Path, _: &Cluster, _: &Path) -> Result<Auth, ConfigError> {
        Err(unsupported(
            format!("the exec credential plugin {:?}", self.command),
            "; build listwatch-client with the feature `exec`",
        ))
    }
}

impl User {
    fn auth(&self, folder: &Path, cluster: &Cluster, cluster_folder: &Path) -> Result<Auth, ConfigError> {
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let path = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let (file, token, username) = (path(&self.token_file), text(&self.token), text(&self.username));
        let has_certificate = text(&self.client_certificate_data).is_some() || path(&self.client_certificate).is_some();
        // As `validateAuthInfo` of clientcmd, and `HTTPWrappersForConfig` for a token file.
        let has_password = username.is_some() || text(&self.password).is_some();
        if has_password && token.is_some() || username.is_some() && file.is_some() {
            return Err(ConfigError::invalid("the user", "has a token and a username or password; use one of them"));
        }
        // Static credentials precede a plugin, as in client-go.
        let is_static = file.is_some() || token.is_some() || username.is_some() || has_certificate;
        if let Some(exec) = self.exec.as_ref().filter(|_| !is_static) {
            return exec.auth(folder, cluster, cluster_folder);
        }
        if let Some(provider) = &self.auth_provider {
            return Err(unsupported(
                format!("the auth provider {:?}", provider.name),
                "; client-go dropped it as well, for exec plugins",
            ));
        }
        Ok(match (file, token, username) {
            // A token file precedes a token, as in client-go, because the file is refreshed.
            (Some(file), ..) => Auth::TokenFile(folder.join(file)),
            (None, Some(token), _) => Auth::Token(token),
            (None, None, Some(username)) => {
                Auth::Basic { username, password: self.password.clone().unwrap_or_default() }
            }
            (None, None, None) => Auth::None,
        })
    }

    fn identity(&self, folder: &Path) -> Result<Option<Identity>, ConfigError> {
        let certificate = pem(
            self.client_certificate_data.as_deref(),
            self.client_certificate.as_deref(),
            folder,
            "client-certificate-data",
        )?;
        let key = pem(self.client_key_data.as_deref(), self.client_key.as_deref(), folder, "client-key-data")?;
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some((certificate, certificate_what)), Some((key, key_what))) => {
                Ok(Some(Identity::parse((&certificate, &certificate_what), (&key, &key_what))?))
            }
            (Some(_), None) => Err(ConfigError::invalid("the client certificate", "has no client-key beside it")),
            (None, Some(_)) => Err(ConfigError::invalid("the client key", "has no client-certificate beside it")),
        }
    }

    /// The files of the client certificate and its key, if both come from files: `loadTLSFiles` of client-go reloads
    /// no other.
    fn identity_files(&self, folder: &Path) -> Option<(PathBuf, PathBuf)> {
        let certificate = only_file(&self.client_certificate_data, &self.client_certificate)?;
        let key = only_file(&self.client_key_data, &self.client_key)?;
        Some((folder.join(certificate), folder.join(key)))
    }

    /// The impersonated user. The check is that of `validateAuthInfo` of clientcmd.
    fn impersonation(&self) -> Result<Option<Impersonation>, ConfigError> {
        let extra = self.as_user_extra.clone().unwrap_or_default();
        let impersonation = Impersonation {
            user: self.as_user.clone().unwrap_or_default(),
            uid: self.as_uid.clone().unwrap_or_default(),
            groups: self.as_groups.clone().unwrap_or_default(),
            extra: extra.into_iter().map(|(key, values)| (key, values.unwrap_or_default())).collect(),
        };
        if impersonation == Impersonation::default() {
            return Ok(None);
        }
        // A missing user is an error of the headers.
        impersonation.headers()?;
        Ok(Some(impersonation))
    }
}

/// The file of an option that is not embedded in the kubeconfig.
fn only_file<'a>(data: &Option<String>, file: &'a Option<PathBuf>) -> Option<&'a Path> {
    let is_embedded = data.as_deref().is_some_and(|data| !data.is_empty());
    file.as_deref().filter(|file| !is_embedded && !file.as_os_str().is_empty())
}

/// Reads embedded data, or else a file, in PEM. The second value names the source for error
/// messages.
fn pem(
    data: Option<&str>,
    file: Option<&Path>,
    folder: &Path,
    what: &str,
) -> Result<Option<(Vec<u8>, String)>, ConfigError> {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        let compact: String = data.split_ascii_whitespace().collect();
        let decoded = base64::engine::general_purpose::STANDARD
            .decode(compact)
            .map_err(|error| ConfigError::invalid(what, format!("is no base64: {error}")).caused_by(error))?;
        return Ok(Some((decoded, what.to_owned())));
    }
    let Some(file) = file.filter(|file| !file.as_os_str().is_empty()) else { return Ok(None) };
    let path = folder.join(file);
    Ok(Some((read(&path)?, path.display().to_string())))
}

fn unsupported(what: String, advice: &str) -> ConfigError {
    ConfigError::Unsupported { what, advice: advice.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::tests::CERTIFICATE;
    use super::*;

    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nAAEC\n-----END PRIVATE KEY-----\n";

    fn encode(text: &str) -> String {
        base64::engine::general_purpose::STANDARD.encode(text)
    }

    fn parse(text: &str) -> Result<Kubeconfig, ConfigError> {
        let mut kubeconfig = Kubeconfig::default();
        kubeconfig.add(Path::new("/nowhere/config"), text.as_bytes())?;
        Ok(kubeconfig)
    }

    fn sample() -> String {
        format!(
            r#"
apiVersion: v1
kind: Config
current-context: dev
preferences: {{}}
clusters:
- name: dev
  cluster:
    server: https://127.0.0.1:6443/
    certificate-authority-data: {}
    tls-server-name: kubernetes
- name: plain
  cluster: {{server: "https://localhost:8443", insecure-skip-tls-verify: true}}
- name: proxied
  cluster: {{server: "https://x", proxy-url: "http://p:3128", disable-compression: true}}
- name: badly-proxied
  cluster: {{server: "https://x", proxy-url: "ftp://p"}}
- name: info
  cluster:
    server: https://far:6443
    certificate-authority-data: {}
    tls-server-name: far.example.com
    proxy-url: http://p:3128
    extensions: [{{name: other, extension: 1}}, {{name: client.authentication.k8s.io/exec, extension: {{audience: me}}}}]
users:
- name: admin
  user:
    token: abc
- name: cert
  user:
    client-certificate-data: {}
    client-key-data: {}
- name: half
  user: {{client-key-data: {}}}
- name: cloud
  user:
    exec:
      command: ./bin/aws
      args: [eks, get-token]
      env: [{{name: AWS_PROFILE, value: dev}}]
      apiVersion: client.authentication.k8s.io/v1
      interactiveMode: IfAvailable
      installHint: get it
      provideClusterInfo: true
- name: old
  user: {{exec: {{command: gke, apiVersion: client.authentication.k8s.io/v1beta1}}}}
- name: older
  user: {{exec: {{command: gke, apiVersion: client.authentication.k8s.io/v1alpha1}}}}
- name: moody
  user: {{exec: {{command: gke, apiVersion: client.authentication.k8s.io/v1}}}}
- name: provided
  user: {{auth-provider: {{name: gcp}}}}
- name: nobody
  user: {{}}
contexts:
- name: dev
  context: {{cluster: dev, user: admin, namespace: shop}}
- name: cert
  context: {{cluster: plain, user: cert}}
- name: half
  context: {{cluster: plain, user: half}}
- name: cloud
  context: {{cluster: info, user: cloud}}
- name: old
  context: {{cluster: dev, user: old}}
- name: older
  context: {{cluster: dev, user: older}}
- name: moody
  context: {{cluster: dev, user: moody}}
- name: provided
  context: {{cluster: dev, user: provided}}
- name: badly-proxied
  context: {{cluster: badly-proxied, user: nobody}}
- name: proxied
  context: {{cluster: proxied, user: nobody}}
- name: lost
  context: {{cluster: gone, user: nobody}}
- name: stranger
  context: {{cluster: dev, user: gone}}
"#,
            encode(CERTIFICATE),
            encode(CERTIFICATE),
            encode(CERTIFICATE),
            encode(KEY),
            encode(KEY)
        )
    }

    #[test]
    fn current_context_is_used_by_default() {
        let config = parse(&sample()).unwrap().config(None).unwrap();
        assert_eq!(config.server.to_string(), "https://127.0.0.1:6443/");
        assert_eq!(config.namespace, "shop");
        assert_eq!(config.tls.authorities.len(), 1);
        assert_eq!(config.tls.server_name.as_deref(), Some("kubernetes"));
        assert!(matches!(config.auth, Auth::Token(token) if token == "abc"));
    }

    #[test]
    fn kubeconfig_client_certificates_are_loaded() {
        let config = parse(&sample()).unwrap().config(Some("cert")).unwrap();
        assert!(config.tls.identity.is_some());
        assert!(config.tls.insecure_skip_verify);
        assert_eq!(config.namespace, "default");
    }

    /// `ClientConfig` of clientcmd reads user and certificates only for a server that is reached over TLS.
    #[test]
    fn plain_http_server_receives_no_credentials() {
        let exec = "exec: {command: p, apiVersion: client.authentication.k8s.io/v1beta1}";
        let certificate = format!("client-certificate-data: {}, client-key-data: {}", encode(CERTIFICATE), encode(KEY));
        for user in ["token: t", "tokenFile: f", "username: me, password: pass", exec, &certificate] {
            let text = format!(
                "clusters: [{{name: c, cluster: {{server: 'http://h', insecure-skip-tls-verify: true, certificate-authority-data: {}}}}}]\nusers: [{{name: u, user: {{{user}, as: jane}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u, namespace: n}}}}]\n",
                encode(CERTIFICATE)
            );
            let config = parse(&text).unwrap().config(Some("x")).unwrap();
            assert!(matches!(config.auth, Auth::None), "{user}: a credential is sent in clear text");
            assert!(config.tls.identity.is_none() && config.tls.files == TlsFiles::default(), "{user}");
            assert!(config.tls.authorities.is_empty() && !config.tls.insecure_skip_verify, "{user}");
            assert_eq!(config.impersonation.map(|user| user.user).as_deref(), Some("jane"), "client-go impersonates");
            assert_eq!(config.namespace, "n");
        }
        // A user that is not usable is an error for any server.
        let both = "clusters: [{name: c, cluster: {server: 'http://h'}}]\nusers: [{name: u, user: {token: t, username: me}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n";
        assert!(parse(both).unwrap().config(Some("x")).is_err());
    }

    #[test]
    fn exec_plugins_are_loaded_with_their_arguments() {
        let Auth::Exec(plugin) = parse(&sample()).unwrap().config(Some("cloud")).unwrap().auth else {
            panic!("the user has a plugin")
        };
        assert_eq!(plugin.command, Path::new("/nowhere/./bin/aws"), "a path is beside the kubeconfig");
        assert_eq!((plugin.args.join(" ").as_str(), plugin.version), ("eks get-token", ExecVersion::V1));
        assert_eq!(plugin.env, [("AWS_PROFILE".to_owned(), "dev".to_owned())]);
        assert_eq!(
            plugin.cluster.unwrap(),
            serde_json::json!({
                "server": "https://far:6443",
                "tls-server-name": "far.example.com",
                "proxy-url": "http://p:3128",
                "certificate-authority-data": encode(CERTIFICATE),
                "config": {"audience": "me"}
            })
        );
        let Auth::Exec(plugin) = parse(&sample()).unwrap().config(Some("old")).unwrap().auth else {
            panic!("the user has a plugin")
        };
        assert_eq!((plugin.version, plugin.interactive), (ExecVersion::V1Beta1, InteractiveMode::IfAvailable));
        assert_eq!((plugin.command.as_path(), plugin.cluster), (Path::new("gke"), None));
    }

    /// The precedence of client-go: `getUserIdentificationPartialConfig` of clientcmd, and
    /// `UpdateTransportConfig` of the exec plugin. Empty values count as absent.
    #[test]
    fn static_credentials_precede_an_exec_plugin() {
        fn check(user: &str, expected: &str) {
            let kubeconfig = parse(&format!(
                "clusters: [{{name: c, cluster: {{server: 'https://h'}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n"
            ));
            let config = kubeconfig.unwrap().config(Some("x")).unwrap();
            let found = match config.auth {
                Auth::None => if config.tls.identity.is_some() { "certificate" } else { "none" }.to_owned(),
                Auth::Token(token) => format!("token {token}"),
                Auth::TokenFile(path) => format!("file {}", path.display()),
                Auth::Exec(_) => "plugin".to_owned(),
                Auth::Basic { username, password } => format!("password {username}:{password}"),
            };
            assert_eq!(found, expected, "{user}");
        }
        let exec = "exec: {command: p, apiVersion: client.authentication.k8s.io/v1beta1}";
        let certificate = format!("client-certificate-data: {}, client-key-data: {}", encode(CERTIFICATE), encode(KEY));
        check(exec, "plugin");
        check(&format!("token: t, {exec}"), "token t");
        check(&format!("tokenFile: f, {exec}"), "file /nowhere/f");
        check(&format!("username: me, password: pass, {exec}"), "password me:pass");
        check(&format!("{certificate}, {exec}"), "certificate");
        check(&format!("token: '', tokenFile: '', username: '', client-certificate: '', {exec}"), "plugin");
        check("tokenFile: f, token: t", "file /nowhere/f");
        check("tokenFile: '', token: t", "token t");
        check("token: '', username: me", "password me:");
        check("token: '', username: ''", "none");
        check("token: '', password: pass", "none");
    }

    /// A kubeconfig with one user, its fields in YAML's flow style.
    fn with_user(user: &str) -> Result<Config, ConfigError> {
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: 'https://h'}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n"
        );
        parse(&text)?.config(Some("x"))
    }

    /// `getUserIdentificationPartialConfig` and `validateAuthInfo` of clientcmd.
    #[test]
    fn impersonation_is_loaded_and_needs_a_user() {
        fn check(user: &str, expected: Result<&[&str], &str>) {
            let found = with_user(user).map(|config| {
                let headers = config.impersonation.map(|user| user.headers().unwrap()).unwrap_or_default();
                headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect::<Vec<_>>()
            });
            let expected = expected.map(|lines| lines.iter().map(|line| (*line).to_owned()).collect());
            assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{user}");
        }
        check("token: t", Ok(&[]));
        check("token: t, as: '', as-uid: '', as-groups: [], as-user-extra: {}", Ok(&[]));
        check("token: t, as-groups: null, as-user-extra: null", Ok(&[]));
        check("token: t, as: jane", Ok(&["impersonate-user: jane"]));
        check(
            "as: jane, as-uid: '7', as-groups: [a, b], as-user-extra: {example.org/role: [x, y], none: null}",
            Ok(&[
                "impersonate-user: jane",
                "impersonate-uid: 7",
                "impersonate-group: a",
                "impersonate-group: b",
                "impersonate-extra-example.org%2frole: x",
                "impersonate-extra-example.org%2frole: y",
            ]),
        );
        let exec = "exec: {command: p, apiVersion: client.authentication.k8s.io/v1beta1}";
        check(&format!("as: jane, {exec}"), Ok(&["impersonate-user: jane"]));
        let without = "the impersonation: requests a uid, groups or user-extra without impersonating a user";
        for part in ["as-uid: '7'", "as-groups: [a]", "as-user-extra: {k: [v]}", "as: '', as-groups: [a]"] {
            check(part, Err(without));
        }
    }

    #[test]
    fn only_options_that_are_not_embedded_are_read_again_from_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("cert.pem"), CERTIFICATE).unwrap();
        std::fs::write(path("key.pem"), KEY).unwrap();
        let check = |cluster: &str, user: &str, authorities: bool, identity: bool| {
            let text = format!(
                "current-context: x\nclusters: [{{name: c, cluster: {{server: 'https://h'{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n"
            );
            std::fs::write(path("config"), text).unwrap();
            let files = Kubeconfig::read(&path("config")).unwrap().config(None).unwrap().tls.files;
            let expected = TlsFiles {
                authorities: authorities.then(|| path("cert.pem")),
                identity: identity.then(|| (path("cert.pem"), path("key.pem"))),
            };
            assert_eq!(files, expected, "{cluster} {user}");
        };
        let (certificate, key) = (encode(CERTIFICATE), encode(KEY));
        check("", "", false, false);
        check(", certificate-authority: cert.pem", "", true, false);
        check(
            &format!(", certificate-authority: cert.pem, certificate-authority-data: {certificate}"),
            "",
            false,
            false,
        );
        check("", "client-certificate: cert.pem, client-key: key.pem", false, true);
        check("", &format!("client-certificate: cert.pem, client-key-data: {key}"), false, false);
        check("", &format!("client-certificate-data: {certificate}, client-key: key.pem"), false, false);
    }

    #[test]
    fn user_with_token_and_password_is_rejected() {
        for both in [
            "token: t, username: me",
            "token: t, password: pass",
            "token: t, username: me, password: pass",
            "tokenFile: f, username: me",
        ] {
            let text = format!(
                "clusters: [{{name: c, cluster: {{server: 'https://h'}}}}]\nusers: [{{name: u, user: {{{both}}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n"
            );
            let error = parse(&text).unwrap().config(Some("x")).unwrap_err().to_string();
            assert_eq!(error, "the user: has a token and a username or password; use one of them", "{both}");
        }
    }

    #[test]
    fn proxy_url_and_disable_compression_are_loaded() {
        let config = parse(&sample()).unwrap().config(Some("proxied")).unwrap();
        assert_eq!(config.transport.proxy, Some(ProxyUrl::parse("http://p:3128").unwrap()));
        assert!(!config.compression);
        let compression = |context| parse(&sample()).unwrap().config(Some(context)).unwrap().compression;
        assert!(compression("cloud"), "a far server sends lists as gzip");
        assert!(!compression("dev"), "one on this machine does not");
    }

    #[test]
    fn invalid_kubeconfig_names_its_reason() {
        fn check(context: &str, expected: &str) {
            let error = parse(&sample()).unwrap().config(Some(context)).unwrap_err().to_string();
            assert_eq!(error, expected);
        }
        check(
            "none",
            "the kubeconfig has no context \"none\"; it has: dev, cert, half, cloud, old, older, moody, provided, badly-proxied, proxied, lost, stranger",
        );
        check("lost", "the kubeconfig has no cluster \"gone\"; it has: dev, plain, proxied, badly-proxied, info");
        check(
            "stranger",
            "the kubeconfig has no user \"gone\"; it has: admin, cert, half, cloud, old, older, moody, provided, nobody",
        );
        check("half", "the client key: has no client-certificate beside it");
        check(
            "older",
            "the apiVersion of the exec credential plugin \"gke\": is neither client.authentication.k8s.io/v1 nor client.authentication.k8s.io/v1beta1",
        );
        check(
            "moody",
            "the interactiveMode of the exec credential plugin \"gke\": has to be given: Never, IfAvailable or Always",
        );
        check(
            "provided",
            "the auth provider \"gcp\" is not supported by this client; client-go dropped it as well, for exec plugins",
        );
        check("badly-proxied", "proxy-url: proxies are reached by http:// or socks5://, not by ftp://");
        let error = parse("{").unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/config: no kubeconfig: "), "{error}");
        assert!(parse("just text").is_err());
    }

    #[test]
    fn first_of_several_kubeconfig_files_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a"), "current-context: one\ncontexts: [{name: one, context: {cluster: c, user: ''}}]\n")
            .unwrap();
        std::fs::write(
            path("b"),
            "current-context: two\nclusters: [{name: c, cluster: {server: 'https://h', certificate-authority: ca.pem}}]\ncontexts: [{name: one, context: {cluster: other}}]\n",
        )
        .unwrap();
        std::fs::write(path("ca.pem"), CERTIFICATE).unwrap();
        let merged = Kubeconfig::read_all([path("missing"), path("a"), path("b")]).unwrap();
        assert_eq!(merged.current_context(), "one");
        let config = merged.config(None).unwrap();
        assert_eq!(config.server.to_string(), "https://h/");
        assert_eq!(config.tls.authorities.len(), 1, "a file is looked for beside its kubeconfig");
        assert!(Kubeconfig::read_all([path("missing")]).is_err());
        let unreadable = Kubeconfig::read_all([folder.path().to_owned(), path("a")]);
        assert!(matches!(unreadable, Err(ConfigError::Unreadable { .. })), "only missing files are skipped");
        assert_eq!(Kubeconfig::read(&path("b")).unwrap().current_context(), "two");
        assert!(matches!(Kubeconfig::read(&path("missing")), Err(ConfigError::Unreadable { .. })));
    }
}
