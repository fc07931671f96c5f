//! The authorizers: their flags ([`settings`]), and the files that these name ([`read`]).

use std::path::{Path, PathBuf};

use listwatch_access::{AbacAuthorizer, AuthorizationConfiguration, ConfiguredAuthorizer};
use listwatch_apiserver::access_webhooks::Client;
use listwatch_apiserver::{AnonymousAuth, AuthorizationMode, Builder};
use listwatch_wire::query::parse_go_duration;

use super::Failure;
use super::command_line::FlagValues;
use super::credentials::read_text;
use super::settings::Settings;

/// The flags that `--authorization-config` replaces.
const REPLACED: [&str; 5] = [
    "authorization-mode",
    "authorization-webhook-cache-authorized-ttl",
    "authorization-webhook-cache-unauthorized-ttl",
    "authorization-webhook-config-file",
    "authorization-webhook-version",
];

/// The authorization of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AuthorizationSettings {
    pub(super) source: AuthorizationSource,
    /// The file of `--authorization-policy-file`.
    pub(super) policy_file: Option<PathBuf>,
}

/// The source of the list of authorizers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AuthorizationSource {
    /// The modes decide, in this order.
    Modes(Vec<AuthorizationMode>),
    /// The authorizers of this file decide.
    File(PathBuf),
}

impl AuthorizationSettings {
    /// The modes of the flag.
    pub(super) fn modes(&self) -> &[AuthorizationMode] {
        match &self.source {
            AuthorizationSource::Modes(modes) => modes,
            AuthorizationSource::File(_) => &[],
        }
    }
}

/// Computes the settings (`BuiltInAuthorizationOptions.Validate`), and passes the errors of flags to `error`.
pub(super) fn settings(given: &FlagValues, mut error: impl FnMut(&str, String)) -> AuthorizationSettings {
    let policy_file = given.path("authorization-policy-file");
    if let Some(file) = given.path("authorization-config") {
        if REPLACED.iter().any(|flag| given.has(flag)) {
            let why = "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined";
            error("authorization-config", why.to_owned());
        }
        return AuthorizationSettings { source: AuthorizationSource::File(file), policy_file };
    }
    let mut modes = Vec::new();
    for mode in given.list("authorization-mode") {
        match mode.parse::<AuthorizationMode>() {
            Ok(mode) if modes.contains(&mode) => {
                let all = given.list("authorization-mode").join("\" \"");
                error(
                    "authorization-mode",
                    format!("authorization-mode [\"{all}\"] has mode specified more than once"),
                );
            }
            Ok(mode) => modes.push(mode),
            Err(why) => error("authorization-mode", why.to_string()),
        }
    }
    match (modes.contains(&AuthorizationMode::Abac), &policy_file) {
        (true, None) => {
            error("authorization-mode", "authorization-mode ABAC's authorization policy file not passed".to_owned());
        }
        (false, Some(_)) => error(
            "authorization-policy-file",
            "cannot specify --authorization-policy-file without mode ABAC".to_owned(),
        ),
        _ => {}
    }
    AuthorizationSettings { source: AuthorizationSource::Modes(modes), policy_file }
}

/// Reads the files, and gives the authorizers to the server. Also returns whether they allow everything to everyone.
///
/// # Errors
/// The flag and the file that cannot be used.
pub(super) fn read(builder: Builder, settings: &Settings) -> Result<(Builder, bool), Failure> {
    let AuthorizationSettings { source, policy_file } = &settings.authorization;
    let (mut builder, modes) = match source {
        AuthorizationSource::Modes(modes) => (builder, modes.clone()),
        AuthorizationSource::File(file) => with_file(builder, file)?,
    };
    if modes.contains(&AuthorizationMode::Abac) {
        let flag = "authorization-policy-file";
        let file = policy_file.as_ref().ok_or("authorization-mode ABAC's authorization policy file not passed")?;
        let policies = AbacAuthorizer::parse(&read_text(file, flag)?)
            .map_err(|error| format!("--{flag} {}: {error}", file.display()))?;
        builder = builder.abac_policies(policies);
    }
    let allows_everything = modes.contains(&AuthorizationMode::AlwaysAllow);
    Ok((builder.authorization(modes), allows_everything))
}

/// Reads the file of `--authorization-config`.
fn with_file(builder: Builder, file: &Path) -> Result<(Builder, Vec<AuthorizationMode>), Failure> {
    let wrong = |error: &dyn std::fmt::Display| format!("--authorization-config {}: {error}", file.display());
    let text = read_text(file, "authorization-config")?;
    let configured = AuthorizationConfiguration::parse(&text, |text| parse_go_duration(text).ok());
    let (mut builder, mut modes) = (builder, Vec::new());
    for (at, authorizer) in configured.map_err(|error| wrong(&error))?.authorizers.into_iter().enumerate() {
        match authorizer {
            ConfiguredAuthorizer::Mode(mode) => modes.push(mode.parse()?),
            ConfiguredAuthorizer::Webhook { kubeconfig, options } => {
                let client = Client::try_from(&*kubeconfig).map_err(|error| {
                    let path = kubeconfig.display();
                    wrong(&format!(
                        "authorizers[{at}].connectionInfo.kubeConfigFile: Invalid value: \"{path}\": {error}"
                    ))
                })?;
                builder = builder.authorization_webhook(client, *options);
                modes.push(AuthorizationMode::Webhook);
            }
        }
    }
    Ok((builder, modes))
}

/// Returns the treatment of anonymous requests. If the authorizers allow everything to everyone, anonymous requests are
/// disabled (`BuiltInAuthenticationOptions.ApplyAuthorization`).
pub(super) fn anonymous_auth(wanted: AnonymousAuth, allows_everything: bool) -> AnonymousAuth {
    if allows_everything { AnonymousAuth::Disabled } else { wanted }
}
