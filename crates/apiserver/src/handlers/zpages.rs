//! Serves `/statusz` and `/flagz`, which describe the process of the server, as text or as objects. The crate
//! [`listwatch_discovery`] makes both.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use listwatch_discovery::{ZPAGE_DELIMITERS, Zpage};
use listwatch_meta::Status;
use listwatch_wire::media_type::{ZPAGE_GROUP, ZpageForm, ZpageVersion, negotiate_zpage, wants_pretty};
use listwatch_wire::pretty::Indenter;
use time::OffsetDateTime;

use super::context::RequestContext;
use crate::filters::warnings::WarningRecorder;
use crate::response::body::Body;
use crate::response::encode::encode;
use crate::response::preferences::ResponsePreferences;
use crate::response::view::status_response;

/// Responds to `/statusz`.
pub(super) fn statusz(request: &RequestContext<'_>, warnings: &WarningRecorder) -> Response<Body> {
    let shared = request.shared;
    let page = Zpage::statusz(shared.started, OffsetDateTime::now_utc(), shared.zpages);
    respond(request.preferences, warnings, &page)
}

/// Responds to `/flagz`.
pub(super) fn flagz(request: &RequestContext<'_>, warnings: &WarningRecorder) -> Response<Body> {
    respond(request.preferences, warnings, &Zpage::flagz(&request.shared.flags))
}

fn respond(preferences: &ResponsePreferences, warnings: &WarningRecorder, page: &Zpage) -> Response<Body> {
    let (content_type, body) = match in_accepted_form(preferences, warnings, page) {
        Ok(page) => page,
        Err(status) => return status_response(preferences, &status),
    };
    let mut response = Response::new(Body::full(body));
    if let Ok(content_type) = HeaderValue::try_from(content_type) {
        response.headers_mut().insert(CONTENT_TYPE, content_type);
    }
    response
}

/// Returns the content type and the bytes of a page in the form that the client accepts.
///
/// # Errors
/// 406 if the client accepts no form of the page; 500 if the object cannot be encoded.
fn in_accepted_form(
    preferences: &ResponsePreferences,
    warnings: &WarningRecorder,
    page: &Zpage,
) -> Result<(String, Bytes), Status> {
    let (negotiated, version) = match negotiate_zpage(preferences.accept(), page.kind(), preferences.cbor())? {
        ZpageForm::Object { negotiated, version } => (negotiated, version),
        ZpageForm::Text => {
            let delimiter = ZPAGE_DELIMITERS[rand::random_range(0..ZPAGE_DELIMITERS.len())];
            return Ok(("text/plain; charset=utf-8".to_owned(), page.to_text(delimiter).into()));
        }
    };
    if version == ZpageVersion::V1alpha1 {
        let endpoint = page.kind().to_lowercase();
        let text = format!("This version of the {endpoint} endpoint is deprecated. Please use a newer version.");
        warnings.add(Some(text));
    }
    let body = encode(&page.to_json(version), negotiated.encoding)?;
    let is_pretty = wants_pretty(preferences.pretty(), &negotiated, preferences.user_agent());
    let body = if is_pretty { Indenter::default().chunk(&body) } else { body };
    let (media_type, version, kind) = (negotiated.encoding.media_type(), version.name(), page.kind());
    Ok((format!("{media_type};g={ZPAGE_GROUP};v={version};as={kind}"), body))
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::{BodyExt as _, Empty};
    use listwatch_json::Value;

    use super::*;
    use crate::{ApiServer, Builder};

    async fn get(server: &ApiServer, path: &str, accept: &str) -> (u16, String, String, Bytes) {
        let request = Request::get(path).header("accept", accept).body(Empty::<Bytes>::new()).unwrap();
        let (parts, body) = server.service().handle(request).await.into_parts();
        let header =
            |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        let bytes = Response::new(body).collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), header("content-type"), header("warning"), bytes)
    }

    async fn start(configure: impl FnOnce(Builder) -> Builder) -> ApiServer {
        configure(ApiServer::builder()).build().await.unwrap()
    }

    #[tokio::test]
    async fn statusz_and_flagz_are_text_or_the_accepted_object() {
        let flags = [("v", "2"), ("secure-port", "6443")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let server = start(|builder| builder.cbor(true).command_line_flags(flags)).await;
        for (path, kind) in [("/statusz", "Statusz"), ("/flagz", "Flagz")] {
            for accept in ["", "*/*", "text/plain"] {
                let (code, content_type, warning, body) = get(&server, path, accept).await;
                let head = (code, &*content_type, &*warning);
                assert_eq!(head, (200, "text/plain; charset=utf-8", ""), "{path} {accept}");
                let start = format!("\napiserver {}\nWarning: This endpoint is not meant", &path[1..]);
                assert!(body.starts_with(start.as_bytes()), "{body:?}");
            }
            for (media_type, version) in
                [("json", "v1beta1"), ("yaml", "v1beta1"), ("cbor", "v1beta1"), ("json", "v1alpha1")]
            {
                let accept = format!("application/{media_type};g=config.k8s.io;v={version};as={kind}");
                let (code, content_type, warning, body) = get(&server, path, &accept).await;
                assert_eq!((code, &content_type), (200, &accept), "{path}");
                let page = &path[1..];
                let deprecation =
                    format!("299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\"");
                assert_eq!(warning, if version == "v1alpha1" { &*deprecation } else { "" }, "{accept}");
                if media_type == "json" {
                    let object: Value = serde_json::from_slice(&body).unwrap();
                    assert_eq!(object["apiVersion"], format!("config.k8s.io/{version}").as_str());
                    assert_eq!(object["kind"], kind);
                    assert_eq!(object["metadata"]["name"], "apiserver");
                }
            }
            for refused in ["application/xml", "application/json", "application/json;v=v1beta1;g=config.k8s.io"] {
                let (code, _, _, body) = get(&server, path, refused).await;
                assert_eq!(code, 406, "{path} {refused}: {body:?}");
            }
        }
        let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
        let (_, _, _, body) = get(&server, "/flagz", accept).await;
        assert!(body.ends_with(b"\"flags\":{\"secure-port\":\"6443\",\"v\":\"2\"}}\n"), "{body:?}");
    }

    #[tokio::test]
    async fn server_without_a_command_line_has_no_flags() {
        let server = start(|builder| builder).await;
        let (code, _, _, body) = get(&server, "/flagz", "text/plain").await;
        assert_eq!(code, 200);
        assert!(body.ends_with(b"debugging purposes only.\n"), "{body:?}");
    }

    #[tokio::test]
    async fn disabled_page_is_not_found_and_not_listed() {
        let server = start(|builder| builder.flagz(false)).await;
        let (code, _, _, body) = get(&server, "/flagz", "text/plain").await;
        assert_eq!((code, &*body), (404, &b"404 page not found\n"[..]));
        for (path, accept) in [("/", ""), ("/statusz", "application/json;g=config.k8s.io;v=v1beta1;as=Statusz")] {
            let (code, _, _, body) = get(&server, path, accept).await;
            let object: Value = serde_json::from_slice(&body).unwrap();
            let has = |path: &str| object["paths"].as_array().unwrap().iter().any(|listed| *listed == path);
            assert_eq!((code, has("/statusz"), has("/flagz")), (200, true, false), "{path}: {object}");
        }
        let server = start(|builder| builder.statusz(false)).await;
        assert_eq!(get(&server, "/statusz", "").await.0, 404);
        assert_eq!(get(&server, "/flagz", "").await.0, 200);
    }
}
