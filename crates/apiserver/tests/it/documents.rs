//! Tests discovery and OpenAPI: forms, ETags and compression, through the service and without a network.

use std::io::Read as _;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use listwatch_apiserver::ApiServer;
use listwatch_wire::protobuf;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

async fn server() -> ApiServer {
    ApiServer::builder().build().await.expect("a server")
}

/// Decodes the protobuf of a discovery document to JSON. Documents of the core group have no `apiVersion`, but the
/// messages of `v1`.
fn decoded_discovery(body: &[u8]) -> listwatch_json::Value {
    let envelope = protobuf::Envelope::parse(body).expect("an envelope");
    let version = if envelope.api_version.is_empty() { "v1" } else { &envelope.api_version };
    let body = protobuf::body(version, &envelope.kind, envelope.raw(body));
    let decoded = protobuf::decode_strict(&body).expect("a message without unknown fields");
    let mut json: listwatch_json::Value = serde_json::from_slice(&decoded.json).expect("JSON");
    if envelope.api_version.is_empty() {
        json.as_object_mut().expect("an object").shift_remove("apiVersion");
    }
    json
}

#[tokio::test(start_paused = true)]
async fn discovery_documents_have_the_negotiated_form() {
    let server = server().await;
    let get = async |path: &str, accept: &str, agent: &str| {
        let request = Request::get(path).header("accept", accept).header("user-agent", agent);
        let response = server.service().handle(request.body(Empty::<Bytes>::new()).expect("a request")).await;
        let (head, body) = response.into_parts();
        (head.status.as_u16(), head.headers, body.collect().await.expect("a body").to_bytes())
    };
    let parse = |body: &[u8]| serde_json::from_slice::<listwatch_json::Value>(body).expect("JSON");
    let content_type = |headers: &http::HeaderMap| headers["content-type"].to_str().expect("plain text").to_owned();
    for (path, kind) in [
        ("/api", "APIVersions"),
        ("/apis", "APIGroupList"),
        ("/apis/apps", "APIGroup"),
        ("/apis/apps/v1", "APIResourceList"),
        ("/api/v1", "APIResourceList"),
    ] {
        let (code, headers, compact) = get(path, "application/json", "kubectl/v1").await;
        assert_eq!((code, content_type(&headers)), (200, "application/json".to_owned()), "{path}");
        assert!(compact.starts_with(b"{\"") && parse(&compact)["kind"] == kind, "{path}");
        for (query, agent, is_pretty) in [
            ("", "curl/8", true),
            ("", "Wget/1", true),
            ("", "Mozilla/5.0", true),
            ("?pretty=1", "kubectl/v1", true),
            ("?pretty=0", "curl/8", false),
        ] {
            let (_, _, body) = get(&format!("{path}{query}"), "*/*", agent).await;
            assert_eq!(body.starts_with(b"{\n  \""), is_pretty, "{path}{query} for {agent}");
            assert_eq!(parse(&body), parse(&compact), "{path}{query} for {agent}");
        }
        let (code, headers, body) = get(path, "application/yaml", "").await;
        assert_eq!((code, content_type(&headers)), (200, "application/yaml".to_owned()), "{path}");
        assert!(String::from_utf8_lossy(&body).contains(&format!("kind: {kind}\n")), "{path}");
        let (code, headers, body) = get(path, "application/vnd.kubernetes.protobuf", "").await;
        assert_eq!((code, content_type(&headers)), (200, "application/vnd.kubernetes.protobuf".to_owned()), "{path}");
        assert_eq!(decoded_discovery(&body), parse(&compact), "{path}");
        assert_eq!(get(path, "text/html", "").await.0, 406, "{path}");
    }

    let public = http::HeaderValue::from_static("public");
    let v2 = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for path in ["/api", "/apis"] {
        let (_, json, compact) = get(path, &format!("application/json, application/json{v2}"), "kubectl/v1").await;
        assert_eq!(parse(&compact)["kind"], "APIGroupDiscoveryList", "{path}: the plain clause does not count");
        for encoding in ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"] {
            let accept = format!("{encoding}{v2}");
            let (code, headers, body) = get(path, &accept, "curl/8").await;
            assert_eq!((code, content_type(&headers)), (200, accept), "{path}");
            assert_eq!((&headers["cache-control"], &headers["etag"]), (&public, &json["etag"]), "{path}");
            match encoding {
                "application/json" => {
                    assert!(body.starts_with(b"{\n  \"") && parse(&body) == parse(&compact), "{path}")
                }
                PROTOBUF => assert_eq!(decoded_discovery(&body), parse(&compact), "{path}"),
                _ => {}
            }
        }
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        assert_eq!(get(path, beta, "").await.0, 406, "{path}");
    }
}

fn text<'a>(headers: &'a http::HeaderMap, name: &str) -> &'a str {
    headers[name].to_str().expect("plain text")
}

#[tokio::test]
async fn openapi_v3_has_the_negotiated_form() {
    let server = server().await;
    let get = async |path: &str, accept: Option<&str>| {
        let request = accept.into_iter().fold(Request::get(path), |request, accept| request.header("accept", accept));
        let response = server.service().handle(request.body(Empty::<Bytes>::new()).expect("a request")).await;
        let (head, body) = response.into_parts();
        (head.status.as_u16(), head.headers, body.collect().await.expect("a body").to_bytes())
    };
    let (index, path) = ("/openapi/v3", "/openapi/v3/apis/apps/v1");
    const JSON: &str = "application/json";
    const CLIENT_GO: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
    const CONTENT_TYPE: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
    let (_, of_json, json) = get(path, None).await;
    let both = format!("{JSON}, {CLIENT_GO}");
    for (accept, expected) in [(None, JSON), (Some(JSON), JSON), (Some(&*both), JSON), (Some(CLIENT_GO), CONTENT_TYPE)]
    {
        let (code, headers, body) = get(path, accept).await;
        assert_eq!((code, text(&headers, "content-type")), (200, expected), "{accept:?}");
        assert_eq!((text(&headers, "etag"), text(&headers, "vary")), (text(&of_json, "etag"), "Accept"), "{accept:?}");
        assert_eq!(body == json, expected == JSON, "{accept:?}");
        // The field `openapi` has the number 1.
        assert_eq!(body.starts_with(b"\x0a\x053.0.0"), expected != JSON, "{accept:?}");
    }
    for path in [path, "/openapi/v3/apis/nope/v1", "/openapi/v2"] {
        let (code, headers, body) = get(path, Some("application/yaml")).await;
        assert_eq!((code, body.is_empty(), text(&headers, "vary")), (406, true, "Accept"), "{path}");
    }
    // The index has one form.
    for accept in ["application/yaml", CLIENT_GO] {
        let (code, headers, _) = get(index, Some(accept)).await;
        assert_eq!((code, text(&headers, "content-type")), (200, JSON), "{accept}");
    }
    let hash = text(&of_json, "etag").trim_matches('"').to_owned();
    let (code, headers, _) = get(&format!("{path}?hash={hash}"), Some(CLIENT_GO)).await;
    assert_eq!(
        (code, text(&headers, "cache-control"), text(&headers, "content-type")),
        (200, "public, immutable", CONTENT_TYPE)
    );
    let (code, headers, _) = get(&format!("{path}?hash=0"), Some(CLIENT_GO)).await;
    assert_eq!((code, text(&headers, "location")), (301, &*format!("{path}?hash={hash}")));
    let (code, headers, version) = get("/openapi/v3/version", None).await;
    assert_eq!((code, text(&headers, "content-type")), (200, JSON));
    assert!(String::from_utf8_lossy(&version).contains("io.k8s.apimachinery.pkg.version.Info"));
}

#[tokio::test]
async fn large_documents_are_compressed_for_clients_that_accept_gzip() {
    let server = server().await;
    let get = async |path: &str, accept: &str, encoding: &str| {
        let request = Request::get(path).header("accept", accept).header("accept-encoding", encoding);
        let response = server.service().handle(request.body(Empty::<Bytes>::new()).expect("a request")).await;
        let (head, body) = response.into_parts();
        (head.headers, body.collect().await.expect("a body").to_bytes())
    };
    let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    for (path, accept, is_compressed) in [
        ("/openapi/v2", "application/json", true),
        ("/openapi/v2", protobuf, true),
        // kube-apiserver does not compress OpenAPI v3.
        ("/openapi/v3/api/v1", "application/json", false),
        // The document is small.
        ("/apis/apps/v1", "application/json", false),
    ] {
        let (plain, expected) = get(path, accept, "identity").await;
        assert_eq!(plain.get("content-encoding"), None, "{path} {accept}");
        let (headers, body) = get(path, accept, "gzip").await;
        assert_eq!(headers.get("content-encoding").is_some_and(|of| of == "gzip"), is_compressed, "{path} {accept}");
        if is_compressed {
            let varies: Vec<_> = headers.get_all("vary").iter().collect();
            assert_eq!(varies, ["Accept", "Accept-Encoding"], "{path} {accept}");
            assert_eq!(headers["etag"], plain["etag"], "{path} {accept}");
            let mut read = Vec::new();
            flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut read).expect("gzip");
            assert!(read == expected && body.len() < expected.len() / 4, "{path} {accept}");
        } else {
            assert_eq!(body, expected, "{path} {accept}");
        }
    }
}

#[tokio::test]
async fn unchanged_openapi_document_is_answered_with_304_and_the_vary_header_of_the_200() {
    let server = server().await;
    let get = async |path: &str, if_none_match: &str, encoding: &str| {
        let request = Request::get(path).header("if-none-match", if_none_match).header("accept-encoding", encoding);
        let response = server.service().handle(request.body(Empty::<Bytes>::new()).expect("a request")).await;
        let (head, body) = response.into_parts();
        (head.status.as_u16(), head.headers, body.collect().await.expect("a body").to_bytes())
    };
    for (path, is_compressible) in [("/openapi/v2", true), ("/openapi/v3", false), ("/openapi/v3/apis/apps/v1", false)]
    {
        let (code, headers, _) = get(path, "\"other\"", "gzip").await;
        assert_eq!(code, 200, "{path}");
        let etag = text(&headers, "etag");
        for header in [etag, &format!("\"other\", {etag}"), &format!("W/{etag}"), "*"] {
            for encoding in ["gzip", "identity"] {
                let (code, headers, body) = get(path, header, encoding).await;
                assert_eq!((code, body.len(), text(&headers, "etag")), (304, 0, etag), "{path} {header}");
                assert_eq!(headers.get("content-type"), None, "{path} {header}");
                let vary: Vec<_> = headers.get_all("vary").iter().collect();
                let expected = &["Accept", "Accept-Encoding"][..1 + usize::from(is_compressible)];
                assert_eq!(vary, expected, "{path} {header} {encoding}");
            }
        }
    }
}

#[tokio::test]
async fn head_of_a_compressible_document_has_the_headers_of_the_uncompressed_document() {
    let server = server().await;
    let send = async |method: &str, encoding: &str| {
        let request = Request::builder().method(method).uri("/openapi/v2").header("accept-encoding", encoding);
        let response = server.service().handle(request.body(Empty::<Bytes>::new()).expect("a request")).await;
        let (mut head, body) = response.into_parts();
        head.headers.remove("audit-id").expect("each request has an audit ID");
        (head.status.as_u16(), head.headers, body.collect().await.expect("a body").to_bytes())
    };
    let (code, mut expected, body) = send("GET", "identity").await;
    assert_eq!(expected.get_all("vary").iter().collect::<Vec<_>>(), ["Accept", "Accept-Encoding"]);
    // For a GET, the connection adds the length.
    expected.insert("content-length", body.len().into());
    for encoding in ["gzip", "identity"] {
        // No body is sent, so none is compressed.
        let (head_code, headers, _) = send("HEAD", encoding).await;
        assert_eq!((head_code, headers), (code, expected.clone()), "{encoding}");
    }
}
