//! Tests conversion webhooks over TLS.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use listwatch_apiserver::ApiServer;
use listwatch_json::{Value, json};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::{V1, V2, check, convert_widget, definition, v1};
use crate::crds::world::World;

/// The response of the webhook.
#[derive(Clone, Debug)]
enum Answer {
    Converted,
    /// A response with this code and body.
    Raw(u16, String),
}

/// A conversion webhook in this process, behind TLS.
struct Webhook {
    port: u16,
    ca: String,
    answer: Arc<Mutex<Answer>>,
    calls: Arc<AtomicUsize>,
    last: Arc<Mutex<Value>>,
}

impl Webhook {
    async fn start() -> Webhook {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth();
        let config = config.with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let webhook = Webhook {
            port: listener.local_addr().unwrap().port(),
            ca: certified.cert.pem(),
            answer: Arc::new(Mutex::new(Answer::Converted)),
            calls: Arc::default(),
            last: Arc::default(),
        };
        let (answer, calls, last) =
            (Arc::clone(&webhook.answer), Arc::clone(&webhook.calls), Arc::clone(&webhook.last));
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let (acceptor, answer, calls, last) =
                    (acceptor.clone(), Arc::clone(&answer), Arc::clone(&calls), Arc::clone(&last));
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut received = Vec::new();
                    let mut buffer = [0; 16 * 1024];
                    while let Ok(count) = stream.read(&mut buffer).await
                        && count > 0
                    {
                        received.extend_from_slice(&buffer[..count]);
                        let Some(review) = complete_body(&received) else { continue };
                        received.clear();
                        calls.fetch_add(1, Ordering::SeqCst);
                        let (code, body) = match answer.lock().unwrap().clone() {
                            Answer::Converted => (200, respond(&review)),
                            Answer::Raw(code, body) => (code, body),
                        };
                        *last.lock().unwrap() = review;
                        let head = format!("HTTP/1.1 {code} X\r\ncontent-length: {}\r\n\r\n", body.len());
                        let response = [head.as_bytes(), body.as_bytes()].concat();
                        if stream.write_all(&response).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        webhook
    }

    fn set(&self, code: u16, body: impl Into<String>) {
        *self.answer.lock().unwrap() = Answer::Raw(code, body.into());
    }

    fn take_calls(&self) -> usize {
        self.calls.swap(0, Ordering::SeqCst)
    }

    fn url(&self) -> String {
        format!("https://localhost:{}/convert", self.port)
    }

    /// Defines widgets that this webhook converts.
    async fn world(&self) -> World {
        let world = World::of(Arc::new(ApiServer::builder().build().await.unwrap()));
        let mut defined = definition("v1");
        defined["spec"]["conversion"]["webhook"]["clientConfig"] =
            json!({"url": self.url(), "caBundle": STANDARD.encode(&self.ca)});
        world.define(&defined).await;
        world.serves("example.com/v2").await;
        world
    }
}

/// Returns the JSON body if the request is complete.
fn complete_body(received: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(received).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    (body.len() >= length.unwrap_or(0_usize)).then(|| serde_json::from_str(body).unwrap())
}

fn respond(review: &Value) -> String {
    let request = &review["request"];
    let desired = request["desiredAPIVersion"].as_str().unwrap();
    let objects = request["objects"].as_array().unwrap().iter();
    let converted: Vec<Value> = objects.map(|object| convert_widget(object, desired)).collect();
    json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": {
        "uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": converted}})
    .to_string()
}

#[tokio::test]
async fn conversion_webhook_is_called_once_per_event_for_all_watchers() {
    let webhook = Webhook::start().await;
    let world = webhook.world().await;
    let from = world.get(V2).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watches = Vec::new();
    for _ in 0..100 {
        watches.push(world.stream(&format!("{V2}?watch=true&resourceVersion={from}")).await);
    }
    assert_eq!(webhook.take_calls(), 0);
    world.post(V1, &v1("a", "h:1")).await;
    for watch in &mut watches {
        check(&watch.next().await.unwrap()["object"], "v2", json!({"host": "h", "port": "1"}));
    }
    assert_eq!(webhook.take_calls(), 1, "one call for one event and a hundred watchers");
    let review = webhook.last.lock().unwrap().clone();
    assert_eq!(
        (&review["kind"], &review["apiVersion"]),
        (&json!("ConversionReview"), &json!("apiextensions.k8s.io/v1"))
    );
    let object = &review["request"]["objects"][0];
    assert_eq!(object["metadata"]["managedFields"][0]["apiVersion"], "example.com/v1", "{object}");
    assert_eq!(object["metadata"].get("resourceVersion"), None);

    let (code, patched) = world.patch(&format!("{V2}/a"), super::MERGE, json!({"spec": {"port": "2"}})).await;
    assert_eq!(code, 200, "{patched}");
    check(&patched, "v2", json!({"host": "h", "port": "2"}));
    let versions = [0, 1].map(|entry| &patched["metadata"]["managedFields"][entry]["apiVersion"]);
    assert_eq!(versions, ["example.com/v1", "example.com/v2"], "{patched}");
    check(&world.get(&format!("{V1}/a")).await.1, "v1", json!({"hostPort": "h:2"}));
}

#[tokio::test]
async fn invalid_conversion_responses_return_upstreams_error_texts() {
    let webhook = Webhook::start().await;
    let world = webhook.world().await;
    world.post(V1, &v1("a", "h:1")).await;
    let review = |response: Value| {
        json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": response}).to_string()
    };
    for (code, body, expected) in [
        (200, "<html>".to_owned(), "couldn't get version/kind; json parse error: expected value at line 1 column 1"),
        (200, String::new(), "0-length response with status code: 200 and content type: application/json"),
        (200, review(json!({"uid": "other", "result": {"status": "Success"}})), "expected response.uid="),
        (200, review(Value::Null), "no response provided"),
        (200, "x".repeat(10_000_000), "the response has more than 4194304 bytes"),
        (404, String::new(), "the server could not find the requested resource"),
        (500, "broken".to_owned(), "an error on the server (\"broken\") has prevented the request from succeeding"),
        (302, String::new(), "the server responded with the status code 302 but did not return more information"),
    ] {
        webhook.set(code, body);
        let (found, status) = world.get(&format!("{V2}/a")).await;
        let message = status["message"].as_str().unwrap();
        let prefix = "conversion webhook for example.com/v1, Kind=Widget failed: ";
        assert!(
            found == 500 && message.starts_with(prefix) && message.contains(expected),
            "{code} {expected}: {message}"
        );
        assert_eq!(status.get("reason"), None);
    }
    assert_eq!(world.get(V1).await.0, 200);
}

#[tokio::test]
async fn unreachable_or_untrusted_conversion_webhook_fails_with_the_error_text_of_go() {
    let webhook = Webhook::start().await;
    let other = Webhook::start().await;
    let refused = listwatch_test_ports::free_port().unwrap();
    for (url, ca, expected) in [
        (
            format!("https://127.0.0.1:{refused}/convert"),
            &webhook.ca,
            format!(
                "Post \"https://127.0.0.1:{refused}/convert\": dial tcp 127.0.0.1:{refused}: connect: connection refused"
            ),
        ),
        (
            webhook.url(),
            &other.ca,
            format!(
                "Post \"{}\": tls: failed to verify certificate: x509: certificate signed by unknown authority",
                webhook.url()
            ),
        ),
    ] {
        let world = World::of(Arc::new(ApiServer::builder().build().await.unwrap()));
        let mut defined = definition("v1");
        defined["spec"]["conversion"]["webhook"]["clientConfig"] = json!({"url": url, "caBundle": STANDARD.encode(ca)});
        world.define(&defined).await;
        world.serves("example.com/v2").await;
        assert_eq!(world.post(V1, &v1("a", "h:1")).await.0, 201);
        let (code, status) = world.get(&format!("{V2}/a")).await;
        let text = format!("conversion webhook for example.com/v1, Kind=Widget failed: {expected}");
        assert_eq!((code, &status["message"]), (500, &json!(text)));
    }
}

#[tokio::test]
async fn conversion_webhook_receives_large_lists_in_several_reviews() {
    let webhook = Webhook::start().await;
    let world = webhook.world().await;
    let host = "h".repeat(200_000);
    for number in 0..12 {
        assert_eq!(world.post(V1, &v1(&format!("w{number:02}"), &format!("{host}:{number}"))).await.0, 201);
    }
    webhook.take_calls();
    let (code, list) = world.get(V2).await;
    assert_eq!((code, list["items"].as_array().map(Vec::len)), (200, Some(12)));
    assert_eq!(list["items"][11]["spec"]["port"], "11");
    assert_eq!(webhook.take_calls(), 3, "five objects of 200 KB fit into a review");
}
