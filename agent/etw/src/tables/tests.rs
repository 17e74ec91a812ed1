use super::*;
use crate::schema::{Count, Kind, Length, Out};

#[test]
fn what_is_compiled_in_is_complete() {
    let mut tables = Tables::empty();
    let rows: Vec<usize> = BUILT_IN
        .iter()
        .map(|(name, text)| tables.extend(name, text).unwrap())
        .collect();
    assert_eq!(rows, [52, 25, 50, 11, 6, 22, 25, 24, 4, 52, 51, 16]);
    let hns = tables.provider_named("Microsoft-Windows-Host-Network-Service").unwrap();
    assert_eq!(hns.guid.to_string(), "0c885e0d-6eb6-476c-a048-2457eed3a5c1");
    assert_eq!(hns.kind, ProviderKind::TraceLogging);
    assert_eq!(tables.provider(hns.guid), Some(hns));
    assert_eq!(
        tables
            .providers()
            .filter(|provider| provider.kind == ProviderKind::Wpp)
            .count(),
        6
    );
    // No length or count may be missing: bytes without one would swallow the rest.
    for (provider, id, version, schema) in tables.events() {
        for field in &schema.fields {
            let bounded = field.kind != Kind::Binary || field.length != Length::Natural;
            assert!(bounded, "{provider} {id} v{version} {}", field.name);
        }
    }
}

#[test]
fn versions_fall_back_to_a_neighbour() {
    let tables = Tables::built_in();
    let dns = tables.provider_named("Microsoft-Windows-DNS-Client").unwrap().guid;
    let fields = |version| tables.event(dns, 3009, version).unwrap().fields.len();
    assert_eq!((fields(0), fields(1), fields(9)), (7, 8, fields(2)));
    assert!(tables.event(dns, 1, 0).is_none());
    let rpc = tables.provider_named("Microsoft-Windows-RPC").unwrap().guid;
    // Only version 1 is known.
    assert_eq!(tables.event(rpc, 7, 0).unwrap().fields.len(), 1);
}

#[test]
fn a_user_can_extend_and_correct() {
    let mut tables = Tables::built_in();
    let text = "# ours\nversion\tprovider\tevent_id\tname\tfields (in order)\tremark\n\n\
        0\tMicrosoft-Windows-Hyper-V-VfpExt\t600\tFlow\tUInt32 Size, Binary Blob[Size]:address, UInt16 Port:port, \
        UInt8 N, UInt32 List*N, Binary Mac[6], UInt32 Pair*2\tx\n\
        3\t9f2660ea-cfe7-428f-9850-aeca612619b0\t601\t\t\n";
    assert_eq!(tables.extend("mine.tsv", text), Ok(2));
    let vfp = tables.provider_named("Microsoft-Windows-Hyper-V-VfpExt").unwrap().guid;
    let schema = tables.event(vfp, 600, 0).unwrap();
    assert_eq!(schema.name.as_deref(), Some("Flow"));
    assert_eq!(
        schema.provider_name.as_deref(),
        Some("Microsoft-Windows-Hyper-V-VfpExt")
    );
    let fields = &schema.fields;
    assert_eq!(
        (fields[0].slot, fields[1].length, fields[1].out),
        (Some(0), Length::Slot(0), Out::Address)
    );
    assert_eq!(
        (fields[2].out, fields[3].slot, fields[4].count),
        (Out::Port, Some(1), Count::Slot(1))
    );
    assert_eq!((fields[5].length, fields[6].count), (Length::Fixed(6), Count::Fixed(2)));
    assert_eq!(schema.slots, 2);
    let empty = tables.event(vfp, 601, 3).unwrap();
    assert!(empty.name.is_none() && empty.fields.is_empty());
}

#[test]
fn rows_that_cannot_be_used_name_their_line_and_add_nothing() {
    let columns = "provider\tevent_id\tversion\tname\tfields\n";
    let vfp = "Microsoft-Windows-Hyper-V-VfpExt";
    for (row, problem) in [
        (
            "Nobody\t1\t0\t\t".to_owned(),
            "provider 'Nobody' is neither known nor a GUID",
        ),
        (
            format!("{vfp}\t65536\t0\t\t"),
            "event_id '65536' is not a number in range",
        ),
        (format!("{vfp}\t1\tx\t\t"), "version 'x' is not a number in range"),
        (format!("{vfp}\t1\t0\t\tUInt32"), "field 'UInt32' has no name"),
        (format!("{vfp}\t1\t0\t\tUInt33 A"), "type 'UInt33' is not known"),
        (
            format!("{vfp}\t1\t0\t\tUInt32 A:colour"),
            "meaning 'colour' is not known",
        ),
        (format!("{vfp}\t1\t0\t\tBinary A[B]"), "'B' is no earlier field"),
        (format!("{vfp}\t1\t0\t\tBinary A[4"), "'Binary A[4' lacks its ']'"),
    ] {
        let mut tables = Tables::built_in();
        let text = format!("{columns}{vfp}\t1\t0\tGood\t\n{row}\n");
        let error = tables.extend("mine.tsv", &text).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot read ETW table 'mine.tsv': line 3: {problem}")
        );
        let guid = tables.provider_named(vfp).unwrap().guid;
        assert!(tables.event(guid, 1, 0).is_none());
    }
    for text in ["", "a\tb\n", "provider\tevent_id\n"] {
        let error = Tables::empty().extend("mine.tsv", text).unwrap_err();
        assert!(matches!(error, TableError::Columns { .. }), "{error}");
    }
    let bad_kind = Tables::empty().extend(
        "p",
        "provider\tguid\tkind\nX\t0c885e0d-6eb6-476c-a048-2457eed3a5c1\tfoo\n",
    );
    assert!(bad_kind.unwrap_err().to_string().contains("kind 'foo' is none of"));
    let bad_guid = Tables::empty().extend("p", "guid\topcode\tversion\tname\tfields\nX\t1\t1\t\t\n");
    assert!(
        bad_guid
            .unwrap_err()
            .to_string()
            .ends_with("line 2: guid 'X' is not a GUID")
    );
}
