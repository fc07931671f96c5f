//! WebSocket compared with the RFC's examples, an independent implementation (tungstenite), and
//! invalid bytes, at all splits.

use std::io::Cursor;

use bytes::Bytes;
use listwatch_wire::websocket::{self, Close, Decoder, Error, Kind, Message, Role};
use proptest::prelude::*;
use tungstenite::protocol::{CloseFrame, WebSocket, WebSocketConfig};

/// The output of a decoder for a stream in these pieces.
fn read(mut decoder: Decoder, pieces: &[&[u8]]) -> (Vec<Message>, Result<(), Error>) {
    let mut found = Vec::new();
    for piece in pieces {
        decoder.feed(piece);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => found.push(message),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.next_message(), Err(error.clone()), "a stream that failed stays failed");
                    return (found, Err(error));
                }
            }
        }
    }
    let end = decoder.finish();
    (found, end)
}

const OPEN: Error = Error::Incomplete { buffered_bytes: 0 };

fn text(text: &'static str) -> Message {
    Message::Text(Bytes::from_static(text.as_bytes()))
}

#[test]
fn rfc_examples_are_decoded_and_encoded() {
    const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
    let masked = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    for (role, stream, expected) in [
        (Role::Client, &b"\x81\x05Hello"[..], text("Hello")),
        (Role::Server, masked, text("Hello")),
        (Role::Client, b"\x01\x03Hel\x80\x02lo", text("Hello")),
        (Role::Client, b"\x89\x05Hello", Message::Ping("Hello".into())),
        (Role::Server, b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", Message::Pong("Hello".into())),
    ] {
        let (found, end) = read(Decoder::new(role), &[stream]);
        assert_eq!((found, end), (vec![expected], Err(OPEN)), "{stream:x?}");
    }
    assert_eq!(websocket::frame(Kind::Text, b"Hello", None), &b"\x81\x05Hello"[..]);
    assert_eq!(websocket::frame(Kind::Text, b"Hello", Some(MASK)), &masked[..]);
    assert_eq!(websocket::frame(Kind::Ping, b"Hello", None), &b"\x89\x05Hello"[..]);
    assert_eq!(websocket::pong(b"Hello", Some(MASK)), &b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"[..]);
    for (bytes, head) in [
        (125, &b"\x82\x7d"[..]),
        (126, b"\x82\x7e\x00\x7e"),
        (256, b"\x82\x7e\x01\x00"),
        (65535, b"\x82\x7e\xff\xff"),
        (65536, b"\x82\x7f\0\0\0\0\0\x01\0\0"),
    ] {
        assert_eq!(Kind::Binary.head(bytes).as_ref(), head);
    }
    assert_eq!(websocket::close(1000, "", None), &b"\x88\x02\x03\xe8"[..]);
    let long = websocket::close(1001, &"ä".repeat(100), None);
    assert_eq!(long[1], 124, "a reason is cut between two characters");
}

#[test]
fn protocol_violation_fails_with_its_close_code() {
    let protocol = |at, why| Error::Protocol { at, why };
    for (role, stream, error, code) in [
        (Role::Server, &b"\x81\x01a"[..], protocol(0, "no mask"), 1002),
        (Role::Client, b"\x81\x80\0\0\0\0", protocol(0, "a server's mask"), 1002),
        (Role::Client, b"\xc1\x01a", protocol(0, "a bit of an extension that was not agreed on"), 1002),
        (Role::Client, b"\x83\x01a", protocol(0, "an unknown opcode"), 1002),
        (Role::Client, b"\x8b\x00", protocol(0, "an unknown opcode"), 1002),
        (Role::Client, b"\x09\x00", protocol(0, "a control message that is long or in pieces"), 1002),
        (Role::Client, b"\x89\x7e\x00\x7e", protocol(0, "a control message that is long or in pieces"), 1002),
        (Role::Client, b"\x82\x7f\x80\0\0\0\0\0\0\0", protocol(0, "a length beyond 63 bits"), 1002),
        (Role::Client, b"\x81\x00\x80\x01a", protocol(2, "a continuation of nothing"), 1002),
        (Role::Client, b"\x01\x01a\x81\x01b", protocol(3, "a message inside a message"), 1002),
        (Role::Client, b"\x88\x01\x03", protocol(0, "half a close code"), 1002),
        (Role::Client, b"\x88\x03\x03\xe8\xff", Error::NotUtf8 { at: 0 }, 1007),
        (Role::Client, b"\x81\x01\xff", Error::NotUtf8 { at: 0 }, 1007),
        (Role::Client, b"\x01\x01\xc3\x80\x01x", Error::NotUtf8 { at: 3 }, 1007),
        (Role::Client, b"\x82\x0b", Error::TooLarge { limit_bytes: 10 }, 1009),
        (Role::Client, b"\x02\x06abcdef\x80\x05", Error::TooLarge { limit_bytes: 10 }, 1009),
        (Role::Client, b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff", Error::TooLarge { limit_bytes: 10 }, 1009),
    ] {
        let (_, end) = read(Decoder::with_limit(role, 10), &[stream]);
        assert_eq!(end, Err(error.clone()), "{stream:x?}");
        assert_eq!(error.close_code(), code, "{error}");
    }
}

#[test]
fn close_code_is_accepted_if_rfc_6455_allows_it_in_a_frame() {
    for (code, allowed) in [
        (0, false),
        (999, false),
        (1000, true),
        (1003, true),
        (1004, false),
        (1005, false),
        (1006, false),
        (1007, true),
        (1014, true),
        (1015, false),
        (2999, false),
        (3000, true),
        (4999, true),
        (5000, false),
        (u16::MAX, false),
    ] {
        let (found, end) = read(Decoder::new(Role::Client), &[&websocket::close(code, "bye", None)]);
        if allowed {
            let close = Message::Close(Some(Close { code, reason: "bye".to_owned() }));
            assert_eq!((found, end), (vec![close], Ok(())), "{code}");
        } else {
            let why = "a close code that may not be sent";
            assert_eq!((found, end), (vec![], Err(Error::Protocol { at: 0, why })), "{code}");
        }
    }
}

#[test]
fn message_and_control_frame_of_the_largest_size_are_accepted() {
    // RFC 6455, 5.5: a control frame has up to 125 bytes.
    let ping = websocket::frame(Kind::Ping, &[b'p'; 125], None);
    let expected = Message::Ping(vec![b'p'; 125].into());
    assert_eq!(read(Decoder::new(Role::Client), &[&ping]), (vec![expected], Err(OPEN)));
    let expected = Message::Binary("0123456789".into());
    for stream in [&b"\x82\x0a0123456789"[..], b"\x02\x060123\x34\x35\x80\x046789", b"\x02\x0a0123456789\x80\x00"] {
        let (found, end) = read(Decoder::with_limit(Role::Client, 10), &[stream]);
        assert_eq!((found, end), (vec![expected.clone()], Err(OPEN)), "a message at the limit: {stream:x?}");
    }
}

#[test]
fn stream_that_ends_early_reports_the_held_bytes() {
    for (stream, buffered_bytes) in [
        (&b""[..], 0),
        (b"\x81", 1),
        (b"\x81\x05Hel", 5),
        (b"\x01\x03Hel", 3),
        (b"\x01\x03Hel\x80", 4),
        (b"\x01\x03Hel\x80\x02l", 6),
        (b"\x81\x05Hello", 0),
    ] {
        let (_, end) = read(Decoder::new(Role::Client), &[stream]);
        assert_eq!(end, Err(Error::Incomplete { buffered_bytes }), "{stream:x?}");
    }
}

#[test]
fn character_split_across_frames_is_decoded_despite_control_frames() {
    let stream = b"\x01\x01\xc3\x89\x01p\x80\x01\xa4\x88\x05\x03\xe8bye\x81\x01x";
    let close = Message::Close(Some(Close { code: 1000, reason: "bye".to_owned() }));
    let expected = vec![Message::Ping("p".into()), text("ä"), close];
    assert_eq!(read(Decoder::new(Role::Client), &[stream]), (expected, Ok(())), "nothing is read behind a close");
    assert_eq!(read(Decoder::new(Role::Client), &[b"\x88\x00"]), (vec![Message::Close(None)], Ok(())));
}

#[test]
fn discarding_decoder_holds_no_client_data() {
    let mut decoder = Decoder::discarding();
    let large = websocket::frame(Kind::Binary, &vec![7; 1 << 20], Some([1, 2, 3, 4]));
    let ping = websocket::frame(Kind::Ping, b"p", Some([5, 6, 7, 8]));
    for chunk in large.chunks(1000).chain(ping.chunks(1)) {
        decoder.feed(chunk);
        let message = decoder.next_message().expect("frames");
        assert!(decoder.buffered_bytes() < 1000, "{} bytes are held", decoder.buffered_bytes());
        assert!(message.is_none_or(|message| message == Message::Ping("p".into())));
    }
    decoder.feed(b"\x88\x80\0\0\0\0");
    assert_eq!(decoder.next_message(), Ok(Some(Message::Close(None))));
    assert_eq!(decoder.finish(), Ok(()));
}

#[test]
fn discarding_decoder_reports_violations_in_skipped_messages() {
    // Frames with a mask of zeros, and 300 bytes or 2 bytes of payload.
    let long = [&b"\x82\xfe\x01\x2c\0\0\0\0"[..], &[7; 300]].concat();
    let (first, more, last) = (&b"\x02\x82\0\0\0\0ab"[..], &b"\x00\x82\0\0\0\0cd"[..], &b"\x80\x82\0\0\0\0ef"[..]);
    let (whole, pong) = (&b"\x82\x82\0\0\0\0gh"[..], &b"\x8a\x80\0\0\0\0"[..]);
    for (frames, at, why) in [
        (&[&long[..], whole, b"\x82\x02ab"][..], 316, "no mask"),
        (&[&long, first, more, last, more], 332, "a continuation of nothing"),
        (&[&long, first, pong, more, whole], 330, "a message inside a message"),
        (&[whole, last], 8, "a continuation of nothing"),
    ] {
        let stream = frames.concat();
        for chunk_bytes in [1, 7, 1000] {
            let chunks: Vec<&[u8]> = stream.chunks(chunk_bytes).collect();
            let (_, end) = read(Decoder::discarding(), &chunks);
            assert_eq!(end, Err(Error::Protocol { at, why }), "in chunks of {chunk_bytes} bytes");
        }
    }
    let (found, end) = read(Decoder::discarding(), &[&[&long, first, pong, more, last, whole].concat()]);
    assert_eq!((found, end), (vec![Message::Pong(Bytes::new())], Err(OPEN)), "valid messages are skipped");
}

fn cut_at<'a>(stream: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
    places.extend([0, stream.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect()
}

/// Random messages of one side, in frames of random size.
fn messages() -> impl Strategy<Value = Vec<(Kind, Vec<u8>)>> {
    let one =
        (0..4_usize, "[a-zä]{0,40}", prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(kind, text, bytes)| {
            let short = bytes.iter().copied().take(100).collect();
            match kind {
                0 => (Kind::Text, text.into_bytes()),
                1 => (Kind::Binary, bytes),
                2 => (Kind::Ping, short),
                _ => (Kind::Pong, short),
            }
        });
    prop::collection::vec(one, 0..8)
}

fn expected(kind: Kind, payload: &[u8]) -> Message {
    let payload = Bytes::copy_from_slice(payload);
    match kind {
        Kind::Text => Message::Text(payload),
        Kind::Binary => Message::Binary(payload),
        Kind::Ping => Message::Ping(payload),
        Kind::Pong => Message::Pong(payload),
        Kind::Close => Message::Close(None),
    }
}

fn theirs(message: tungstenite::Message) -> Message {
    match message {
        tungstenite::Message::Text(text) => Message::Text(Bytes::copy_from_slice(text.as_bytes())),
        tungstenite::Message::Binary(bytes) => Message::Binary(bytes),
        tungstenite::Message::Ping(bytes) => Message::Ping(bytes),
        tungstenite::Message::Pong(bytes) => Message::Pong(bytes),
        tungstenite::Message::Close(close) => Message::Close(
            close.map(|CloseFrame { code, reason }| Close { code: code.into(), reason: reason.as_str().to_owned() }),
        ),
        tungstenite::Message::Frame(frame) => panic!("{frame} is no message"),
    }
}

/// The messages that tungstenite reads from our frames.
fn read_by_tungstenite(role: tungstenite::protocol::Role, stream: Vec<u8>) -> Vec<Message> {
    let config = WebSocketConfig::default();
    let mut socket = WebSocket::from_raw_socket(Cursor::new(stream), role, Some(config));
    let mut found = Vec::new();
    while let Ok(message) = socket.read() {
        found.push(theirs(message));
        // tungstenite would write answers to pings over the bytes still to be read.
        if socket.get_ref().position() as usize == socket.get_ref().get_ref().len() && !socket.can_read() {
            break;
        }
    }
    found
}

proptest! {
    #[test]
    fn any_bytes_decode_the_same_at_any_split(
        stream in prop::collection::vec(prop_oneof![
            Just(0x81_u8), Just(0x01), Just(0x80), Just(0x00), Just(0x02), Just(0x89), Just(0x88), Just(0x85),
            Just(0x7e), any::<u8>(),
        ], 0..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        server in any::<bool>(),
        discard in any::<bool>(),
    ) {
        let role = if server { Role::Server } else { Role::Client };
        let new = || if discard { Decoder::discarding() } else { Decoder::with_limit(role, 20) };
        let split = read(new(), &cut_at(&stream, &cuts));
        let (whole, whole_end) = read(new(), &[&stream]);
        prop_assert_eq!(&whole, &split.0);
        // Skipped data is not counted, so the number of held bytes may differ.
        let same = whole_end == split.1
            || matches!((&whole_end, &split.1), (Err(Error::Incomplete { .. }), Err(Error::Incomplete { .. })));
        prop_assert!(same, "{:?} and {:?}", whole_end, split.1);
    }

    #[test]
    fn messages_round_trip_at_any_frames_and_splits(
        messages in messages(),
        masks in prop::collection::vec(any::<[u8; 4]>(), 64),
        frame_bytes in 1_usize..80,
        server in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let (mut stream, mut masks) = (Vec::new(), masks.into_iter().cycle());
        let mut mask = || if server { masks.next() } else { None };
        for (kind, payload) in &messages {
            if matches!(kind, Kind::Ping | Kind::Pong) || payload.is_empty() {
                stream.extend_from_slice(&websocket::frame(*kind, payload, mask()));
                continue;
            }
            let pieces: Vec<&[u8]> = payload.chunks(frame_bytes).collect();
            for (at, piece) in pieces.iter().enumerate() {
                let mut frame = websocket::frame(*kind, piece, mask()).to_vec();
                // All frames except the last lack the final bit; all except the first are
                // continuations.
                frame[0] &= if at + 1 < pieces.len() { 0x7f } else { 0xff };
                frame[0] &= if at > 0 { 0xf0 } else { 0xff };
                stream.extend_from_slice(&frame);
            }
        }
        let role = if server { Role::Server } else { Role::Client };
        let (found, end) = read(Decoder::new(role), &cut_at(&stream, &cuts));
        let all: Vec<Message> = messages.iter().map(|(kind, payload)| expected(*kind, payload)).collect();
        prop_assert_eq!(found, all);
        prop_assert_eq!(end, Err(OPEN));
    }

    #[test]
    fn tungstenite_decodes_the_encoded_frames(messages in messages(), masks in any::<[u8; 4]>(), server in any::<bool>()) {
        // tungstenite would write answers to pings into the stream that is read.
        let messages: Vec<_> = messages.into_iter().filter(|(kind, _)| *kind != Kind::Ping).collect();
        let mask = server.then_some(masks);
        let mut stream: Vec<u8> =
            messages.iter().flat_map(|(kind, payload)| websocket::frame(*kind, payload, mask).to_vec()).collect();
        stream.extend_from_slice(&websocket::close(1000, "bye", mask));
        let role = if server { tungstenite::protocol::Role::Server } else { tungstenite::protocol::Role::Client };
        let mut all: Vec<Message> = messages.iter().map(|(kind, payload)| expected(*kind, payload)).collect();
        all.push(Message::Close(Some(Close { code: 1000, reason: "bye".to_owned() })));
        prop_assert_eq!(read_by_tungstenite(role, stream), all);
    }

    #[test]
    fn websocket_frames_written_by_tungstenite_are_decoded(messages in messages(), server in any::<bool>()) {
        let role = if server { tungstenite::protocol::Role::Server } else { tungstenite::protocol::Role::Client };
        let mut socket = WebSocket::from_raw_socket(Cursor::new(Vec::new()), role, None);
        for (kind, payload) in &messages {
            let payload = payload.clone();
            let message = match kind {
                Kind::Text => tungstenite::Message::text(String::from_utf8(payload).expect("text")),
                Kind::Binary => tungstenite::Message::binary(payload),
                Kind::Ping => tungstenite::Message::Ping(payload.into()),
                _ => tungstenite::Message::Pong(payload.into()),
            };
            socket.send(message).expect("it fits");
        }
        let stream = socket.get_ref().get_ref().clone();
        let reader = if server { Role::Client } else { Role::Server };
        let (found, end) = read(Decoder::new(reader), &[&stream]);
        let all: Vec<Message> = messages.iter().map(|(kind, payload)| expected(*kind, payload)).collect();
        prop_assert_eq!(found, all);
        prop_assert_eq!(end, Err(OPEN));
    }

    #[test]
    fn websocket_mask_applied_twice_restores_the_data(bytes in prop::collection::vec(any::<u8>(), 0..40), key in any::<[u8; 4]>(), cut in any::<prop::sample::Index>()) {
        let mut masked = bytes.clone();
        websocket::mask(&mut masked, key, 0);
        for (at, byte) in masked.iter().enumerate() {
            prop_assert_eq!(*byte, bytes[at] ^ key[at % 4]);
        }
        let cut = cut.index(bytes.len() + 1);
        websocket::mask(&mut masked[..cut], key, 0);
        websocket::mask(&mut masked[cut..], key, cut);
        prop_assert_eq!(masked, bytes);
    }
}
