use super::*;
use crate::schema::Schema;

fn read_one(kind: Kind, length: Length, data: &[u8]) -> Option<Value> {
    let mut spec = FieldSpec::new("field", kind, Out::Plain);
    spec.length = length;
    let schema = Schema {
        fields: [spec].into(),
        ..Schema::default()
    };
    read(&schema, data, 8).fields.pop().map(|field| field.value)
}

fn text(text: &str) -> Option<Value> {
    Some(Value::Text(text.into()))
}

#[test]
fn text_of_every_form() {
    let natural = Length::Natural;
    assert_eq!(read_one(Kind::Utf16, natural, b"a\0"), text("a"));
    assert_eq!(read_one(Kind::Utf16, Length::Fixed(3), b"a\0\0\0b\0"), text("a"));
    assert_eq!(read_one(Kind::Utf16, Length::Fixed(3), b"a\0"), None);
    assert_eq!(read_one(Kind::Utf16Rest, natural, b"a\0b\0"), text("ab"));
    assert_eq!(read_one(Kind::AnsiRest, natural, b"ab"), text("ab"));
    assert_eq!(read_one(Kind::Ansi, Length::Fixed(3), b"a\0b"), text("a"));
    // Not UTF-8: read as Latin-1. An unpaired surrogate: replaced.
    assert_eq!(read_one(Kind::Ansi, natural, b"gr\xfcn\0"), text("gr\u{fc}n"));
    assert_eq!(read_one(Kind::Utf16, natural, b"\x00\xd8x\0\0\0"), text("\u{fffd}x"));
    assert_eq!(read_one(Kind::CountedUtf16, natural, b"\x02\0a\0"), text("a"));
    assert_eq!(read_one(Kind::ReversedCountedUtf16, natural, b"\0\x02a\0"), text("a"));
    assert_eq!(read_one(Kind::ReversedCountedAnsi, natural, b"\0\x02ab"), text("ab"));
    assert_eq!(read_one(Kind::CountedAnsi, natural, b"\x05\0ab"), None);
    assert_eq!(
        read_one(Kind::HexDump, natural, &[2, 0, 0, 0, 8, 9]),
        Some(Value::Bytes([8, 9].into()))
    );
    assert_eq!(
        read_one(Kind::Binary, natural, &[8, 9]),
        Some(Value::Bytes([8, 9].into()))
    );
}

#[test]
fn system_times() {
    let time = |parts: [u16; 8]| {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
        read_one(Kind::SystemTime, Length::Natural, &bytes).unwrap()
    };
    let unix_ns = |parts| time(parts).unix_ns().unwrap();
    assert_eq!(unix_ns([1970, 1, 4, 1, 0, 0, 1, 0]), 1_000_000_000);
    assert_eq!(unix_ns([2024, 2, 4, 29, 23, 59, 59, 999]), 1_709_251_199_999_000_000);
    assert_eq!(unix_ns([2024, 3, 5, 1, 0, 0, 0, 0]), 1_709_251_200_000_000_000);
    assert_eq!(time([1601, 1, 1, 1, 0, 0, 0, 0]), Value::FileTime(FileTime(0)));
    assert!(matches!(time([2024, 13, 0, 1, 0, 0, 0, 0]), Value::Bytes(_)));
}

#[test]
fn addresses_by_family_and_length() {
    let v6 = "fe80::1".parse::<std::net::Ipv6Addr>().unwrap();
    let mut socket = vec![23, 0, 0x01, 0xbb, 0, 0, 0, 0];
    socket.extend(v6.octets());
    socket.extend([7, 0, 0, 0]);
    let read = |bytes: &[u8]| address::read(bytes);
    let Some(Value::SocketAddr(found)) = read(&socket) else {
        panic!("no address");
    };
    assert_eq!(found.to_string(), "[fe80::1%7]:443");
    // A storage block has room behind the address.
    socket.resize(128, 0);
    assert!(matches!(read(&socket), Some(Value::SocketAddr(_))));
    assert_eq!(read(&[10, 0, 0, 1]), Some(Value::Ip([10, 0, 0, 1].into())));
    assert_eq!(read(&v6.octets()), Some(Value::Ip(v6.into())));
    assert_eq!(read(&[1, 2, 3]), None);
    assert_eq!(read(&[]), None);
}

#[test]
fn security_ids() {
    let sid = [1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0];
    let text = Some(Value::Sid("S-1-5-18".into()));
    assert_eq!(read_one(Kind::Sid, Length::Natural, &sid), text);
    let mut token = vec![0xff; 16];
    token.extend(sid);
    assert_eq!(read_one(Kind::WbemSid, Length::Natural, &token), text);
    assert_eq!(
        read_one(Kind::WbemSid, Length::Natural, &[0; 4]),
        Some(Value::Sid("".into()))
    );
    // It claims more parts than there are.
    assert_eq!(
        read_one(Kind::Sid, Length::Natural, &[1, 9, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0]),
        None
    );
}
