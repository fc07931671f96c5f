//! [`Kubeconfig`]: the server and the credentials of a webhook, from the current context of a kubeconfig file
//! (`apiserver/pkg/util/webhook.LoadKubeconfig`).

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_proxy::{ClientCertificate, TlsSettings};
use serde::Deserialize;

/// The error of a kubeconfig. The text contains no credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KubeconfigError(String);

/// The server, the TLS settings and the credentials of the current context.
#[derive(Clone, PartialEq, Eq)]
pub struct Kubeconfig {
    url: String,
    pub(crate) tls: TlsSettings,
    pub(crate) authorization: Authorization,
}

/// The source of the header `Authorization`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Authorization {
    None,
    /// The value of the header.
    Fixed(String),
    /// The token of a file, which may change.
    TokenFile {
        path: PathBuf,
        /// The token before the first read of the file.
        token: String,
        /// Whether this token was read from the file.
        is_of_file: bool,
    },
}

impl fmt::Debug for Kubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubeconfig").field("url", &self.url).finish_non_exhaustive()
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct File {
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
    contexts: Vec<NamedContext>,
    current_context: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: String,
    tls_server_name: String,
    insecure_skip_tls_verify: bool,
    certificate_authority: String,
    certificate_authority_data: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    username: String,
    password: String,
    exec: Option<serde::de::IgnoredAny>,
    #[serde(rename = "auth-provider")]
    auth_provider: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

impl Kubeconfig {
    /// Reads a kubeconfig file and the files that it names. Relative paths start at the directory of the kubeconfig.
    ///
    /// # Errors
    /// [`KubeconfigError`] if a file cannot be read or the kubeconfig is not usable, see [`Kubeconfig::parse`].
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| KubeconfigError(format!("open {}: {error}", path.display())))?;
        Kubeconfig::parse(&text, path.parent().unwrap_or(Path::new(".")))
    }

    /// Reads the text of a kubeconfig. Relative paths start at `directory`.
    ///
    /// # Errors
    /// The text is not a kubeconfig, the current context is incomplete, a file cannot be read, the token file of a user
    /// without a `token` is empty (also if the user has a client certificate), the user has a token or a token file
    /// together with a username or password, or the user has an unsupported kind of credential (`exec` or
    /// `auth-provider`).
    pub fn parse(text: &str, directory: &Path) -> Result<Self, KubeconfigError> {
        // The parser's text could quote a credential.
        let file: File = yaml_serde::from_str(text).map_err(|error| {
            let at = error.location().map(|at| format!(" at line {}", at.line())).unwrap_or_default();
            KubeconfigError(format!("the file is not a kubeconfig: malformed YAML or a field of the wrong type{at}"))
        })?;
        let missing = |what: &str, name: &str| KubeconfigError(format!("{what} {name:?} does not exist"));
        let name = file.current_context.as_str();
        if name.is_empty() {
            return Err(KubeconfigError("the kubeconfig has no current-context".to_owned()));
        }
        let context = file.contexts.into_iter().find(|context| context.name == name);
        let Context { cluster, user } = context.ok_or_else(|| missing("context", name))?.context;
        let found = file.clusters.into_iter().find(|named| named.name == cluster);
        let cluster = found.ok_or_else(|| missing("cluster", &cluster))?.cluster;
        let user = match user.as_str() {
            "" => User::default(),
            name => {
                let found = file.users.into_iter().find(|named| named.name == name);
                found.ok_or_else(|| missing("user", name))?.user
            }
        };
        if user.exec.is_some() || user.auth_provider.is_some() {
            let text = "credentials by exec and auth-provider are not supported: use a certificate or a token";
            return Err(KubeconfigError(text.to_owned()));
        }
        let contents = |data: &str, file: &str, what: &str| -> Result<Vec<u8>, KubeconfigError> {
            if !data.is_empty() {
                return BASE64.decode(data).map_err(|_| KubeconfigError(format!("{what}-data is not base64")));
            }
            if file.is_empty() {
                return Ok(Vec::new());
            }
            let path = directory.join(file);
            std::fs::read(&path).map_err(|error| KubeconfigError(format!("{what}: open {}: {error}", path.display())))
        };
        let (data, file) = (&cluster.certificate_authority_data, &cluster.certificate_authority);
        let ca_bundle = contents(data, file, "certificate-authority")?;
        let chain_pem = contents(&user.client_certificate_data, &user.client_certificate, "client-certificate")?;
        let key_pem = contents(&user.client_key_data, &user.client_key, "client-key")?;
        let client_certificate = match (chain_pem.is_empty(), key_pem.is_empty()) {
            (true, true) => None,
            (false, false) => Some(ClientCertificate { chain_pem, key_pem }),
            _ => {
                return Err(KubeconfigError("client-certificate and client-key need each other".to_owned()));
            }
        };
        let has_token = !user.token.is_empty() || !user.token_file.is_empty();
        if has_token && !(user.username.is_empty() && user.password.is_empty()) {
            // As `validateAuthInfo` of clientcmd, and `HTTPWrappersForConfig` of client-go for a token file.
            let error = "the user has a token and a username or password; use one of them";
            return Err(KubeconfigError(error.to_owned()));
        }
        // As in client-go, a token file precedes a token. The token is used while the file cannot be read.
        let token_file = (!user.token_file.is_empty()).then(|| directory.join(&user.token_file));
        let (token, is_of_file) = match contents("", &user.token_file, "tokenFile") {
            Ok(read) if !read.trim_ascii().is_empty() => (String::from_utf8_lossy(&read).trim().to_owned(), true),
            Err(error) if user.token.is_empty() => return Err(error),
            _ => (user.token, false),
        };
        let authorization = match (token_file, token.as_str(), user.username.as_str()) {
            // The requests would have no token, also after one is written.
            (Some(path), "", _) => return Err(KubeconfigError(format!("the tokenFile {} is empty", path.display()))),
            (Some(path), ..) => Authorization::TokenFile { path, token, is_of_file },
            (None, "", "") => Authorization::None,
            (None, "", username) => {
                Authorization::Fixed(format!("Basic {}", BASE64.encode(format!("{username}:{}", user.password))))
            }
            (None, token, _) => Authorization::Fixed(format!("Bearer {token}")),
        };
        let tls = TlsSettings {
            server_name: cluster.tls_server_name,
            ca_bundle,
            insecure_skip_verify: cluster.insecure_skip_tls_verify,
            client_certificate,
        };
        Ok(Kubeconfig { url: cluster.server, tls, authorization })
    }

    /// Creates the settings of a server without credentials. If `ca_bundle` is empty, the CAs of the system are
    /// trusted.
    pub fn of_url(url: &str, ca_bundle: &[u8]) -> Self {
        let tls = TlsSettings { ca_bundle: ca_bundle.to_vec(), ..TlsSettings::default() };
        Kubeconfig { url: url.to_owned(), tls, authorization: Authorization::None }
    }

    /// The URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_user(user: &str) -> Result<Kubeconfig, KubeconfigError> {
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: 'https://h/p'}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
        );
        Kubeconfig::parse(&text, Path::new("/nowhere"))
    }

    #[test]
    fn credentials_of_the_current_context_are_used() {
        let fixed = |header: &str| Authorization::Fixed(header.to_owned());
        for (user, expected) in [
            ("token: t", fixed("Bearer t")),
            ("username: a, password: b", fixed("Basic YTpi")),
            ("", Authorization::None),
        ] {
            assert!(with_user(user).unwrap().authorization == expected, "{user}");
        }
        let certificate = with_user("client-certificate-data: YQ==, client-key-data: Yg==").unwrap();
        assert!(certificate.tls.client_certificate.is_some());
    }

    #[test]
    fn relative_file_paths_start_at_the_kubeconfig_and_a_token_file_precedes_a_token() {
        let directory = tempfile::tempdir().unwrap();
        let token_file = directory.path().join("token");
        std::fs::write(&token_file, "t\n").unwrap();
        let path = directory.path().join("config");
        let text = "clusters: [{name: c, cluster: {server: 'https://h'}}]\nusers: [{name: u, user: {tokenFile: token}}]\n\
             contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n";
        std::fs::write(&path, text).unwrap();
        let read = |token: &str, is_of_file: bool| {
            let token = token.to_owned();
            assert!(
                Kubeconfig::read(&path).unwrap().authorization
                    == Authorization::TokenFile { path: token_file.clone(), token, is_of_file }
            );
        };
        read("t", true);
        std::fs::write(&path, text.replace("{tokenFile", "{token: other, tokenFile")).unwrap();
        read("t", true);
        std::fs::write(&token_file, " \n").unwrap();
        read("other", false);
        std::fs::remove_file(&token_file).unwrap();
        read("other", false);
    }

    #[test]
    fn empty_token_file_of_a_user_without_a_token_is_an_error_also_with_a_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let token_file = directory.path().join("token");
        let field = format!("tokenFile: {}", token_file.display());
        for text in ["", " \n"] {
            std::fs::write(&token_file, text).unwrap();
            for certificate in ["", ", client-certificate-data: YQ==, client-key-data: Yg=="] {
                let error = with_user(&format!("{field}{certificate}")).expect_err("an error").to_string();
                assert_eq!(error, format!("the tokenFile {} is empty", token_file.display()), "{text:?}{certificate}");
            }
        }
    }

    #[test]
    fn username_or_password_with_a_token_or_a_token_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let token_file = directory.path().join("token");
        for text in ["", "t"] {
            std::fs::write(&token_file, text).unwrap();
            for token in [format!("tokenFile: {}", token_file.display()), "token: t".to_owned()] {
                for basic in ["username: a", "password: b", "username: a, password: b"] {
                    let user = format!("{token}, {basic}");
                    let error = with_user(&user).expect_err("an error").to_string();
                    assert_eq!(error, "the user has a token and a username or password; use one of them", "{user}");
                }
            }
        }
    }

    #[test]
    fn kubeconfig_error_names_the_invalid_part_but_no_credential() {
        let error = |result: Result<Kubeconfig, KubeconfigError>| result.expect_err("an error").to_string();
        assert!(error(with_user("exec: {command: x}")).contains("exec"));
        assert!(error(with_user("client-key-data: Yg==")).contains("need each other"));
        assert!(error(with_user("client-key-data: '*s3cret'")).contains("client-key-data is not base64"));
        assert!(error(with_user("tokenFile: x")).contains("/nowhere/x"));
        let text = error(with_user("token: [s3cret]"));
        assert!(text.contains("not a kubeconfig") && !text.contains("s3cret"), "{text}");
        let parse = |text: &str| error(Kubeconfig::parse(text, Path::new(".")));
        assert!(parse("{}").contains("current-context"));
        assert_eq!(parse("current-context: a"), "context \"a\" does not exist");
        let debug = format!("{:?}", with_user("token: s3cret").unwrap());
        assert!(!debug.contains("s3cret"), "{debug}");
    }
}
