//! Protobuf against the real thing: bodies of a kube-apiserver, asked for in both encodings.

use listwatch_wire::protobuf;

/// What an object is called, its protobuf body, and its JSON body.
struct Golden {
    name: &'static str,
    protobuf: Vec<u8>,
    json: &'static str,
}

fn golden() -> Vec<Golden> {
    let text = include_str!("protobuf/golden.txt");
    let blocks = text.split("\n\n").skip(1).map(|block| {
        let mut lines = block.lines();
        let mut line = || lines.next().expect("three lines a block");
        Golden { name: line(), protobuf: unhex(line()), json: line() }
    });
    blocks.collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digit).collect()
}

#[test]
fn what_kube_apiserver_writes_as_protobuf_becomes_what_it_writes_as_json() {
    for Golden { name, protobuf, json } in golden() {
        let decoded = protobuf::decode(&protobuf).unwrap_or_else(|error| panic!("{name}: {error}"));
        // An empty list and none are the same on the wire; Go reads it as none. Inside a list, no
        // item says its type.
        let json = json.replace("\"items\":[]", "\"items\":null");
        let json = json.replace("[{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",", "[{");
        assert_eq!(String::from_utf8_lossy(&decoded.json), json, "{name}");
    }
}
