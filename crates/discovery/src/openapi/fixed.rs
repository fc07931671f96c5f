//! The version 3 documents of paths without resources: `/version`, and the documents of the token issuer.
//!
//! Source: `{version,.well-known__openid-configuration,openid__v1__jwks}_openapi.json` in Kubernetes'
//! `api/openapi-spec/v3`.

use listwatch_json::{Map, Value, json};

use super::schema::Version;
use super::v3::security_schemes;
use crate::version::KUBERNETES_VERSION;

/// A path below `/openapi/v3/`, and the function that builds its document.
type Document = (&'static str, fn() -> Value);

/// The documents.
pub(super) const DOCUMENTS: [Document; 3] =
    [(".well-known/openid-configuration", issuer), ("openid/v1/jwks", keys), ("version", version)];

/// The model of the response of `/version`.
const VERSION_INFO: &str = "io.k8s.apimachinery.pkg.version.Info";

/// The members of [`VERSION_INFO`], with their descriptions. Go omits the optional members if they are empty.
const VERSION_MEMBERS: [(&str, &str, bool); 13] = [
    ("major", "Major is the major version of the binary version", true),
    ("minor", "Minor is the minor version of the binary version", true),
    ("emulationMajor", "EmulationMajor is the major version of the emulation version", false),
    ("emulationMinor", "EmulationMinor is the minor version of the emulation version", false),
    ("minCompatibilityMajor", "MinCompatibilityMajor is the major version of the minimum compatibility version", false),
    ("minCompatibilityMinor", "MinCompatibilityMinor is the minor version of the minimum compatibility version", false),
    ("gitVersion", "", true),
    ("gitCommit", "", true),
    ("gitTreeState", "", true),
    ("buildDate", "", true),
    ("goVersion", "", true),
    ("compiler", "", true),
    ("platform", "", true),
];

fn version() -> Value {
    let mut properties = Map::new();
    for (name, description, is_required) in VERSION_MEMBERS {
        let mut property = json!({"type": "string"});
        if is_required {
            property["default"] = json!("");
        }
        if !description.is_empty() {
            property["description"] = json!(description);
        }
        properties.insert(name, property);
    }
    let required: Vec<&str> =
        VERSION_MEMBERS.iter().filter(|(_, _, is_required)| *is_required).map(|(name, _, _)| *name).collect();
    let info = json!({
        "description": "Info contains versioning information. how we'll want to distribute that information.",
        "type": "object",
        "properties": properties,
        "required": required,
    });
    let mut document = document(
        "/version/",
        ("getCodeVersion", "get the version information for this server", "version"),
        ("application/json", Version::Three.reference(VERSION_INFO)),
    );
    document["components"]["schemas"] = json!({ VERSION_INFO: info });
    document
}

fn issuer() -> Value {
    document(
        "/.well-known/openid-configuration/",
        (
            "getServiceAccountIssuerOpenIDConfiguration",
            "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
            "WellKnown",
        ),
        ("application/json", json!({"type": "string"})),
    )
}

fn keys() -> Value {
    document(
        "/openid/v1/jwks/",
        (
            "getServiceAccountIssuerOpenIDKeyset",
            "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
            "openid",
        ),
        ("application/jwk-set+json", json!({"type": "string"})),
    )
}

/// Builds the document of a path with one GET: the ID, description and tag of the operation, and the media type and
/// schema of its response.
fn document(path: &str, (id, description, tag): (&str, &str, &str), (media_type, schema): (&str, Value)) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": {
            path: {
                "get": {
                    "description": description,
                    "operationId": id,
                    "tags": [tag],
                    "responses": {
                        "200": {"description": "OK", "content": {media_type: {"schema": schema}}},
                        "401": {"description": "Unauthorized"},
                    },
                },
            },
        },
        "components": {"securitySchemes": security_schemes()},
    })
}
