//! The flags `--oidc-*`: their values ([`settings`]), and the issuer that they describe ([`read`]).

use std::path::PathBuf;

use listwatch_apiserver::Builder;
use listwatch_apiserver::token_issuers::{JwtIssuer, OidcFlags};

use super::Failure;
use super::command_line::FlagValues;
use super::credentials::read_text;

/// All flags `--oidc-*`.
const FLAGS: [&str; 9] = [
    "oidc-ca-file",
    "oidc-client-id",
    "oidc-groups-claim",
    "oidc-groups-prefix",
    "oidc-issuer-url",
    "oidc-required-claim",
    "oidc-signing-algs",
    "oidc-username-claim",
    "oidc-username-prefix",
];

/// The issuer that the flags describe.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OidcSettings {
    pub(super) ca_file: Option<PathBuf>,
    /// The values of the flags. `certificate_authority` is empty until `ca_file` is read.
    pub(super) flags: OidcFlags,
}

/// Computes the settings (`BuiltInAuthenticationOptions.validateOIDCOptions`). `None` without one of the flags.
///
/// # Errors
/// The flag with its error.
pub(super) fn settings(given: &FlagValues) -> Result<Option<OidcSettings>, (&'static str, String)> {
    let Some(first) = FLAGS.into_iter().find(|flag| given.has(flag)) else { return Ok(None) };
    if given.has("authentication-config") {
        return Err((first, "authentication-config file and oidc-* flags are mutually exclusive".to_owned()));
    }
    let text = |flag: &str| given.text(flag).unwrap_or_default().to_owned();
    let (issuer_url, client_id) = (text("oidc-issuer-url"), text("oidc-client-id"));
    if issuer_url.is_empty() || client_id.is_empty() {
        let why = "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set";
        return Err((first, why.to_owned()));
    }
    let mut required_claims: Vec<(String, String)> = Vec::new();
    for pair in given.texts("oidc-required-claim").filter(|pair| !pair.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| ("oidc-required-claim", format!("malformed pair, expect string=string: {pair}")))?;
        let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
        // A repeated claim has its last value.
        required_claims.retain(|(known, _)| *known != name);
        required_claims.push((name, value));
    }
    let flags = OidcFlags {
        issuer_url,
        client_id,
        certificate_authority: String::new(),
        username_claim: text("oidc-username-claim"),
        username_prefix: text("oidc-username-prefix"),
        groups_claim: text("oidc-groups-claim"),
        groups_prefix: text("oidc-groups-prefix"),
        required_claims,
        signing_algorithms: given.list("oidc-signing-algs").into_iter().map(str::to_owned).collect(),
    };
    Ok(Some(OidcSettings { ca_file: given.path("oidc-ca-file"), flags }))
}

/// Reads the file, and gives the issuer to the server.
///
/// # Errors
/// The file or the value that cannot be used.
pub(super) fn read(builder: Builder, settings: &OidcSettings, own_issuers: &[String]) -> Result<Builder, Failure> {
    let certificate_authority = match &settings.ca_file {
        Some(file) => read_text(file, "oidc-ca-file")?,
        None => String::new(),
    };
    let flags = OidcFlags { certificate_authority, ..settings.flags.clone() };
    let issuer = JwtIssuer::of_flags(flags, own_issuers).map_err(|error| format!("--oidc-*: {error}"))?;
    Ok(builder.token_issuers(vec![issuer]))
}
