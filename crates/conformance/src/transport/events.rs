//! The events of a watch: from the bytes of a response or the messages of a WebSocket to documents.

use std::io::Write as _;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use listwatch_wire::frame::FRAME_LIMIT_BYTES;
use listwatch_wire::{Encoding, Frames, cbor, protobuf};
use serde_json::Value;
use tokio::sync::mpsc;

use super::body::{header, media_type, typed};
use super::session::Sender;

/// The maximum number of events that a watch receives before the case reads them. A watch with more events ends with an
/// error.
const EVENTS_MAX: usize = 200_000;

/// An event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) object: Value,
}

impl Event {
    pub(crate) fn name(&self) -> &str {
        self.metadata("name")
    }

    pub(crate) fn resource_version(&self) -> &str {
        self.metadata("resourceVersion")
    }

    fn metadata(&self, member: &str) -> &str {
        let metadata = match self.object["kind"].as_str() {
            // The object of a Table is in its only row.
            Some("Table") => &self.object["rows"][0]["object"]["metadata"],
            _ => &self.object["metadata"],
        };
        metadata[member].as_str().unwrap_or_default()
    }
}

/// An event of a watch, or a text about a protocol violation.
pub(crate) type Received = Result<Event, String>;

/// Splits the bytes of a watch into events.
pub(crate) struct EventDecoder {
    encoding: Encoding,
    frames: Frames,
    gzip: Option<MultiGzDecoder<Vec<u8>>>,
}

impl EventDecoder {
    /// Creates a decoder for a response with these headers.
    ///
    /// # Errors
    /// The media type is not that of a watch.
    pub(crate) fn new(headers: &HeaderMap) -> Result<Self, String> {
        let encoding = match media_type(headers).as_str() {
            "application/json" => Encoding::Json,
            "application/vnd.kubernetes.protobuf" => Encoding::Protobuf,
            "application/cbor-seq" => Encoding::Cbor,
            _ => return Err(format!("the watch has the Content-Type {:?}", header(headers, &CONTENT_TYPE))),
        };
        let frames = Frames::new(encoding, FRAME_LIMIT_BYTES).ok_or("the encoding has no frames")?;
        let gzip = header(headers, &CONTENT_ENCODING).eq_ignore_ascii_case("gzip");
        Ok(EventDecoder { encoding, frames, gzip: gzip.then(|| MultiGzDecoder::new(Vec::new())) })
    }

    /// Adds bytes, and returns the complete events.
    ///
    /// # Errors
    /// The bytes are not those of a watch.
    pub(crate) fn feed(&mut self, chunk: &Bytes) -> Result<Vec<Event>, String> {
        let plain = match &mut self.gzip {
            None => chunk.clone(),
            Some(decoder) => {
                let written = decoder.write_all(chunk).and_then(|()| decoder.flush());
                written.map_err(|error| format!("the watch is not valid gzip: {error}"))?;
                Bytes::from(std::mem::take(decoder.get_mut()))
            }
        };
        self.frames.feed(plain);
        let mut events = Vec::new();
        while let Some(frame) = self.frames.next_frame().map_err(|error| error.to_string())? {
            events.push(decode(self.encoding, &frame)?);
        }
        Ok(events)
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// The stream ends inside an event.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        self.frames.finish().map_err(|error| error.to_string())
    }
}

/// Decodes one event: a frame of a stream, or a WebSocket message.
pub(crate) fn decode(encoding: Encoding, frame: &Bytes) -> Result<Event, String> {
    let invalid = |what: &str, error: &dyn std::fmt::Display| format!("an event is not valid {what}: {error}");
    match encoding {
        Encoding::Protobuf => {
            let message = protobuf::WatchMessage::parse(frame).map_err(|error| invalid("protobuf", &error))?;
            let decoded = protobuf::decode(&message.envelope).map_err(|error| invalid("protobuf", &error))?;
            let object = serde_json::from_slice(&decoded.json).map_err(|error| invalid("protobuf", &error))?;
            let object = typed(object, &decoded.api_version, &decoded.kind);
            Ok(Event { kind: message.kind.as_str().to_owned(), object })
        }
        Encoding::Cbor => {
            let message = cbor::WatchMessage::parse(frame).map_err(|error| invalid("CBOR", &error))?;
            let decoded = cbor::decode(&message.object).map_err(|error| invalid("CBOR", &error))?;
            let object = serde_json::from_slice(&decoded).map_err(|error| invalid("CBOR", &error))?;
            Ok(Event { kind: message.kind.as_str().to_owned(), object })
        }
        _ => {
            let mut document: Value = serde_json::from_slice(frame).map_err(|error| invalid("JSON", &error))?;
            let kind = document["type"].as_str().ok_or("an event has no type")?.to_owned();
            let object = document["object"].take();
            if !object.is_object() {
                return Err(format!("an event of type {kind} has no object"));
            }
            Ok(Event { kind, object })
        }
    }
}

/// The receiving end of a watch. The stream ends when the channel closes.
pub(crate) struct Stream {
    events: mpsc::Receiver<Received>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stream {
    /// Reads a response in the background.
    pub(crate) fn read(mut decoder: EventDecoder, mut body: Incoming, sender: Sender) -> Self {
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let task = tokio::spawn(async move {
            let _sender = sender;
            while let Some(frame) = body.frame().await {
                let chunk = match frame {
                    Ok(frame) => frame.into_data().unwrap_or_default(),
                    Err(error) => {
                        let _ = events.try_send(Err(format!("the stream broke off: {error}")));
                        return;
                    }
                };
                match decoder.feed(&chunk) {
                    Ok(decoded) => {
                        for event in decoded {
                            if events.try_send(Ok(event)).is_err() {
                                return;
                            }
                        }
                    }
                    Err(why) => {
                        let _ = events.try_send(Err(why));
                        return;
                    }
                }
            }
            if let Err(why) = decoder.finish() {
                let _ = events.try_send(Err(why));
            }
        });
        Stream { events: receiver, task }
    }

    /// Runs a reader in the background that sends what it receives.
    pub(crate) fn spawn<F>(reader: impl FnOnce(mpsc::Sender<Received>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        Stream { events: receiver, task: tokio::spawn(reader(events)) }
    }

    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Received> {
        self.events.recv().await
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn decoder(media_type: &'static str) -> Result<EventDecoder, String> {
        EventDecoder::new(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(media_type))]))
    }

    #[test]
    fn events_are_found_across_chunks() {
        let mut decoder = decoder("application/json").unwrap();
        let first = decoder.feed(&Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"na")).unwrap();
        assert!(first.is_empty());
        let second = decoder.feed(&Bytes::from_static(b"me\":\"a\",\"resourceVersion\":\"7\"}}}\n")).unwrap();
        assert_eq!((second[0].kind.as_str(), second[0].name(), second[0].resource_version()), ("ADDED", "a", "7"));
        assert!(decoder.finish().is_ok());
    }

    #[test]
    fn stream_that_ends_inside_an_event_is_an_error() {
        let mut decoder = decoder("application/json;charset=utf-8").unwrap();
        decoder.feed(&Bytes::from_static(b"{\"type\":")).unwrap();
        assert!(decoder.finish().is_err());
    }

    #[test]
    fn list_instead_of_events_is_an_error() {
        let mut decoder = decoder("application/json").unwrap();
        assert!(decoder.feed(&Bytes::from_static(b"{\"kind\":\"ConfigMapList\",\"items\":[]}")).is_err());
        assert!(super::EventDecoder::new(&HeaderMap::new()).is_err());
    }
}
