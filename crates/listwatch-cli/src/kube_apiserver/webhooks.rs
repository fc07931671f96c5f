//! The flags of the webhooks that authenticate tokens and authorize requests: computes their settings ([`settings`]),
//! and reads their kubeconfigs ([`read`]).

use std::path::{Path, PathBuf};

use listwatch_apiserver::access_webhooks::{AuthorizationWebhookOptions, Client, ReviewVersion, TokenWebhookOptions};
use listwatch_apiserver::{AuthorizationMode, Builder};

use super::Failure;
use super::command_line::FlagValues;

/// The webhooks that the flags describe.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WebhookSettings {
    pub(super) authorization: Option<(PathBuf, AuthorizationWebhookOptions)>,
    pub(super) tokens: Option<(PathBuf, TokenWebhookOptions)>,
}

/// Computes the settings (`BuiltInAuthorizationOptions.Validate`).
///
/// # Errors
/// The flag with its error.
pub(super) fn settings(
    given: &FlagValues,
    modes: &[AuthorizationMode],
    api_audiences: &[String],
) -> Result<WebhookSettings, (&'static str, String)> {
    let version = |flag: &'static str| match given.text(flag) {
        Some("v1") => Ok(ReviewVersion::V1),
        Some("v1beta1") => Ok(ReviewVersion::V1Beta1),
        other => Err((flag, format!("{:?} is not a version: v1 or v1beta1", other.unwrap_or_default()))),
    };
    let mut settings = WebhookSettings::default();
    let flag = "authorization-webhook-config-file";
    match (given.path(flag), modes.contains(&AuthorizationMode::Webhook)) {
        (Some(file), true) => {
            let options = AuthorizationWebhookOptions {
                version: version("authorization-webhook-version")?,
                allowed_for: given.duration("authorization-webhook-cache-authorized-ttl"),
                refused_for: given.duration("authorization-webhook-cache-unauthorized-ttl"),
                ..AuthorizationWebhookOptions::default()
            };
            settings.authorization = Some((file, options));
        }
        (None, true) => {
            return Err((flag, "authorization-mode Webhook's authorization config file not passed".to_owned()));
        }
        (Some(_), false) => {
            return Err((flag, format!("cannot specify --{flag} without mode Webhook")));
        }
        (None, false) => {}
    }
    if let Some(file) = given.path("authentication-token-webhook-config-file") {
        let options = TokenWebhookOptions {
            version: version("authentication-token-webhook-version")?,
            kept_for: given.duration("authentication-token-webhook-cache-ttl"),
            api_audiences: api_audiences.to_vec(),
        };
        settings.tokens = Some((file, options));
    }
    Ok(settings)
}

/// Reads the kubeconfigs, and passes the webhooks to the builder of the server.
///
/// # Errors
/// The flag and the file that cannot be used.
pub(super) fn read(builder: Builder, settings: &WebhookSettings) -> Result<Builder, Failure> {
    let client = |flag: &str, file: &Path| {
        Client::try_from(file).map_err(|error| format!("--{flag} {}: {error}", file.display()))
    };
    let mut builder = builder;
    if let Some((file, options)) = &settings.authorization {
        builder = builder.authorization_webhook(client("authorization-webhook-config-file", file)?, options.clone());
    }
    if let Some((file, options)) = &settings.tokens {
        builder = builder.token_webhook(client("authentication-token-webhook-config-file", file)?, options.clone());
    }
    Ok(builder)
}
