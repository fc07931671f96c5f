//! Reads the files with credentials, and passes them to the builder of the server: CAs, tokens, certificates for
//! outgoing connections.

use std::path::Path;

use listwatch_access::{
    ClientCertificateAuthenticator, FrontProxyAuthenticator, ServiceAccountTokenOptions, SigningKey,
    TokenFileAuthenticator, VerificationKey,
};
use listwatch_apiserver::token_issuers::AuthenticationConfiguration;
use listwatch_apiserver::{AnonymousAuth, Builder, KubeletOptions, RequestHeader};

use super::Failure;
use super::settings::{CertificateFiles, FrontProxy, ServiceAccountSettings, Settings};

/// Reads all files of the settings.
///
/// # Errors
/// The flag and the file that cannot be used.
pub(super) fn read(builder: Builder, settings: &Settings, anonymous_auth: AnonymousAuth) -> Result<Builder, Failure> {
    let mut builder = builder;
    if let Some(file) = &settings.token_auth_file {
        let authenticator = TokenFileAuthenticator::new(&read_text(file, "token-auth-file")?)
            .map_err(|error| format!("--token-auth-file {}: {error}", file.display()))?;
        builder = builder.authenticator(authenticator);
    }
    builder = super::audit::read(builder, &settings.audit)?;
    builder = super::webhooks::read(builder, &settings.webhooks)?;
    builder = with_issuers(builder, settings, anonymous_auth)?;
    if let Some(oidc) = &settings.oidc {
        builder = super::oidc::read(builder, oidc, &settings.service_account.issuers)?;
    }
    builder = with_service_accounts(builder, &settings.service_account)?.bootstrap_tokens(settings.bootstrap_tokens);
    if let Some(files) = &settings.proxy_client {
        let (chain, key) = read_pair(files, "proxy-client-cert-file", "proxy-client-key-file")?;
        builder = builder.proxy_client_certificate(&chain, &key);
    }
    let kubelet_client = settings.kubelet_client.as_ref();
    let kubelet = KubeletOptions {
        client_certificate: kubelet_client
            .map(|files| read_pair(files, "kubelet-client-certificate", "kubelet-client-key"))
            .transpose()?,
        certificate_authority: settings
            .kubelet_ca_file
            .as_ref()
            .map(|file| read_text(file, "kubelet-certificate-authority"))
            .transpose()?,
        preferred_address_types: settings.kubelet_address_types.clone(),
    };
    builder = builder.kubelet(kubelet);
    let clients = match &settings.client_ca_file {
        Some(file) => {
            let authorities = read_text(file, "client-ca-file")?;
            let authenticator = ClientCertificateAuthenticator::new(&authorities)
                .map_err(|error| format!("--client-ca-file {}: {error}", file.display()))?;
            builder = builder.client_ca(&authorities);
            Some(authenticator)
        }
        None => None,
    };
    if let Some(front_proxy) = &settings.front_proxy {
        builder = with_front_proxy(builder, front_proxy, clients.as_ref())?;
    }
    Ok(match clients {
        Some(clients) => builder.client_certificates(clients),
        None => builder,
    })
}

/// Reads the file of `--authentication-config`.
fn with_issuers(builder: Builder, settings: &Settings, anonymous_auth: AnonymousAuth) -> Result<Builder, Failure> {
    let Some(file) = &settings.authentication_config else { return Ok(builder) };
    let flag = "authentication-config";
    let config = AuthenticationConfiguration::parse(&read_text(file, flag)?, &settings.service_account.issuers)
        .map_err(|error| format!("--{flag} {}: {error}", file.display()))?;
    let builder = builder.token_issuers(config.issuers);
    Ok(match config.anonymous {
        None => builder,
        Some(_) if settings.anonymous_auth_given => {
            let text = "--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file";
            return Err(text.into());
        }
        // `AlwaysAllow` never allows anonymous requests.
        Some(anonymous) if anonymous.enabled && anonymous_auth != AnonymousAuth::Disabled => {
            builder.anonymous_auth(AnonymousAuth::Enabled).anonymous_paths(anonymous.paths)
        }
        Some(_) => builder.anonymous_auth(AnonymousAuth::Disabled),
    })
}

/// Reads the keys of service account tokens. An error contains the name of the file, but none of its contents.
fn with_service_accounts(builder: Builder, settings: &ServiceAccountSettings) -> Result<Builder, Failure> {
    let signing_key = match &settings.signing_key_file {
        Some(file) => {
            let flag = "service-account-signing-key-file";
            let key = SigningKey::read(read_text(file, flag)?.as_bytes());
            Some(key.map_err(|error| format!("--{flag} {}: {error}", file.display()))?)
        }
        None => None,
    };
    let mut verification_keys = Vec::new();
    for file in &settings.key_files {
        let flag = "service-account-key-file";
        let keys = VerificationKey::read_all(read_text(file, flag)?.as_bytes());
        verification_keys.extend(keys.map_err(|error| format!("--{flag} {}: {error}", file.display()))?);
    }
    let builder = builder.service_account_tokens(ServiceAccountTokenOptions {
        issuers: settings.issuers.clone(),
        api_audiences: settings.api_audiences.clone(),
        signing_key,
        verification_keys,
        max_expiration_seconds: settings.max_expiration_seconds,
        extend_expiration: settings.extend_expiration,
    });
    Ok(match &settings.jwks_uri {
        Some(uri) => builder.service_account_jwks_uri(uri),
        None => builder,
    })
}

/// Trusts the front proxies, and publishes their CA and headers for extension servers.
fn with_front_proxy(
    builder: Builder,
    front_proxy: &FrontProxy,
    clients: Option<&ClientCertificateAuthenticator>,
) -> Result<Builder, Failure> {
    let FrontProxy { client_ca_file: file, headers } = front_proxy;
    let client_ca = read_text(file, "requestheader-client-ca-file")?;
    let wrong = |error| format!("--requestheader-client-ca-file {}: {error}", file.display());
    let authenticator = FrontProxyAuthenticator::new(&client_ca, headers).map_err(wrong)?;
    if let Some(clients) = clients {
        authenticator.check_distinct_from(clients).map_err(wrong)?;
    }
    let headers = headers.clone();
    Ok(builder.front_proxy(authenticator).request_header(RequestHeader {
        client_ca,
        username_headers: headers.username,
        uid_headers: headers.uid,
        group_headers: headers.groups,
        extra_header_prefixes: headers.extra_prefixes,
        allowed_names: headers.allowed_names,
    }))
}

/// Reads a certificate chain and its key.
fn read_pair(files: &CertificateFiles, certificate: &str, key: &str) -> Result<(String, String), Failure> {
    Ok((read_text(&files.certificate, certificate)?, read_text(&files.key, key)?))
}

pub(super) fn read_text(file: &Path, flag: &str) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| format!("--{flag} {}: {error}", file.display()).into())
}
