//! Mutations of a configuration: of its values and keys where it is JSON, and of its bytes.

use crate::json::Json;

/// A generator of numbers that are the same in every run (splitmix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    pub fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// One or two mutations of a text.
pub fn mutated(text: &[u8], random: &mut Random) -> Vec<u8> {
    let Some(mut tree) = Json::parse(text) else {
        return bytes(text.to_vec(), random);
    };
    if random.chance(15) {
        return bytes(text.to_vec(), random);
    }
    for _ in 0..=random.below(2) {
        mutate(&mut tree, random);
    }
    let rendered = tree.render();
    if random.chance(10) {
        bytes(rendered, random)
    } else {
        rendered
    }
}

fn mutate(tree: &mut Json, random: &mut Random) {
    let number = random.below(tree.count());
    let place = tree.at(number);
    match (place, random.below(10)) {
        (Json::Object(members), 0) if !members.is_empty() => {
            let at = random.below(members.len());
            members[at].0 = respelled(&members[at].0, random);
        }
        (Json::Object(members), 1) if !members.is_empty() => {
            members.remove(random.below(members.len()));
        }
        (Json::Object(members), 2) if !members.is_empty() => {
            // A duplicate, in the same or another spelling, before or after.
            let (key, old) = members[random.below(members.len())].clone();
            let key = if random.chance(50) {
                key
            } else {
                respelled(&key, random)
            };
            let new = if random.chance(30) { old } else { value(random) };
            members.insert(random.below(members.len() + 1), (key, new));
        }
        (Json::Object(members), 3..=5) => {
            let key = random.one_of(KEYS).to_owned();
            let key = if random.chance(60) {
                key
            } else {
                respelled(&key, random)
            };
            let at = random.below(members.len() + 1);
            members.insert(at, (key, value(random)));
        }
        (Json::Object(members), 6) if !members.is_empty() => {
            let at = random.below(members.len());
            members[at].1 = value(random);
        }
        (Json::List(values), 0..=2) => {
            let at = random.below(values.len() + 1);
            values.insert(at, value(random));
        }
        (Json::List(values), 3) => values.clear(),
        (place, 7) => {
            let inner = place.clone();
            *place = if random.chance(50) {
                Json::List(vec![inner])
            } else {
                Json::Object(vec![(random.one_of(KEYS).to_owned(), inner)])
            };
        }
        // A number or a literal as a text, and the other way round.
        (Json::Raw(raw), 8) => *tree.at(number) = Json::Text(String::from_utf8_lossy(&raw.clone()).into_owned()),
        (Json::Text(text), 8) => *tree.at(number) = Json::Raw(text.clone().into_bytes()),
        (place, _) => *place = value(random),
    }
}

/// A key in another case, or with a character that Go takes for one of its letters, or none of these.
fn respelled(key: &str, random: &mut Random) -> String {
    match random.below(7) {
        0 => key.to_uppercase(),
        1 => key.to_lowercase(),
        2 => key.replace('s', "\u{17f}").replace('k', "\u{212a}"),
        3 => {
            let flip = |(index, c): (usize, char)| {
                if index % 2 == 0 {
                    c.to_ascii_uppercase()
                } else {
                    c.to_ascii_lowercase()
                }
            };
            key.chars().enumerate().map(flip).collect()
        }
        4 => {
            let mut characters = key.chars();
            let first = characters.next().map(|c| c.to_ascii_uppercase());
            first.into_iter().chain(characters).collect()
        }
        5 => key.replace('i', "\u{131}"),
        _ => format!("{key} "),
    }
}

fn value(random: &mut Random) -> Json {
    match random.below(20) {
        0..=8 => Json::raw(random.one_of(RAW)),
        9..=14 => Json::Text(random.one_of(TEXTS).to_owned()),
        15 => Json::Text("n".repeat(200 + random.below(200))),
        16 => Json::List((0..random.below(4)).map(|_| value(random)).collect()),
        17 => {
            let depth = 1 + random.below(300);
            let nested = ["[".repeat(depth), "]".repeat(depth)].concat();
            Json::Raw(nested.into_bytes())
        }
        _ => {
            let member = |_| (random.one_of(KEYS).to_owned(), Json::raw(random.one_of(RAW)));
            Json::Object((0..2).map(member).collect())
        }
    }
}

/// Mutations below the level of JSON.
fn bytes(mut text: Vec<u8>, random: &mut Random) -> Vec<u8> {
    let at = random.below(text.len() + 1);
    match random.below(14) {
        0 => text.truncate(at),
        1 => text.splice(0..0, *b"\xef\xbb\xbf").for_each(drop),
        2 => {
            let utf16 = String::from_utf8_lossy(&text).encode_utf16().collect::<Vec<_>>();
            let mark = random.chance(50).then_some(0xfeff);
            let little = random.chance(50);
            let units = mark.into_iter().chain(utf16);
            text = units
                .flat_map(|unit: u16| if little { unit.to_le_bytes() } else { unit.to_be_bytes() })
                .collect();
        }
        3..=5 => {
            let insertion = random.one_of(INSERTIONS);
            text.splice(at..at, insertion.iter().copied()).for_each(drop);
        }
        6 => text.extend(random.one_of(INSERTIONS).iter()),
        7 => text
            .splice(0..0, random.one_of(INSERTIONS).iter().copied())
            .for_each(drop),
        8..=9 if at < text.len() => text[at] = u8::try_from(random.below(256)).unwrap(),
        10 if at < text.len() => {
            text.remove(at);
        }
        // Bytes that are no UTF-8, within some string.
        11 => {
            let quotes: Vec<usize> = (0..text.len()).filter(|at| text[*at] == b'"').collect();
            if !quotes.is_empty() {
                let at = random.one_of(&quotes) + 1;
                let wrong = random.one_of(NOT_UTF8);
                text.splice(at..at, wrong.iter().copied()).for_each(drop);
            }
        }
        12 => {
            let end = (at + 1 + random.below(20)).min(text.len());
            text.drain(at..end);
        }
        _ => text.reverse(),
    }
    text
}

const KEYS: &[&str] = &[
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "plugins",
    "capabilities",
    "ipam",
    "dns",
    "nameservers",
    "domain",
    "search",
    "options",
    "prevResult",
    "cni.dev/valid-attachments",
    "containerID",
    "ifname",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
    "unknown",
    "",
];

const TEXTS: &[&str] = &[
    "",
    "bridge",
    "host-local",
    "loopback",
    "absent",
    "../bridge",
    ".",
    "..",
    "true",
    "False",
    "TRUE",
    "maybe",
    "0.1.0",
    "0.2.0",
    "0.3.1",
    "0.4.0",
    "1.0",
    "1.0.0",
    "1.1.0",
    "1.1.1",
    "2.0.0",
    "1",
    "+1.0.0",
    "-1",
    "v1.0.0",
    "1.0.0.0",
    "1.x",
    "one",
    " 1.0.0",
    "a b",
    "sub",
    "-a",
    "a\n",
    "\u{fffd}",
    "\u{0}",
    "x/y",
    "99999999999999999999",
];

const RAW: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "-0",
    "1.5",
    "1e2",
    "-7",
    "1e308",
    "1e309",
    "-1e400",
    "1e-400",
    "179769313486231580793e289",
    "[]",
    "[null]",
    "[[]]",
    "[1]",
    "[\"x\"]",
    "[\"8.8.8.8\",null]",
    "[true]",
    "[{}]",
    "[{\"type\":\"bridge\"}]",
    "[{\"Type\":\"bridge\"},{\"TYPE\":\"portmap\"}]",
    "[{\"type\":\"bridge\"},null]",
    "[\"0.4.0\",\"1.0.0\"]",
    "[\"1.0\",\"1.0.0\",\"1\"]",
    "[\"9.9.9\"]",
    "[\"\"]",
    "[\"x\"]",
    "{}",
    "{\"type\":null}",
    "{\"type\":1}",
    "{\"Type\":\"host-local\"}",
    "{\"TYPE\":[]}",
    "{\"a\":null}",
    "{\"a\":true}",
    "{\"a\":\"true\"}",
    "{\"a\":1}",
    "{\"nameservers\":\"x\"}",
    "{\"nameservers\":[1]}",
    "{\"Search\":[\"x\"]}",
    "{\"options\":{}}",
    "{\"domain\":7}",
    "{\"a\":1e999}",
    "[{\"containerID\":1}]",
    "[{\"ContainerID\":\"x\",\"IfName\":\"y\"}]",
    "[{\"ifname\":{}}]",
    "1e",
    "01",
    "1.",
    ".5",
    "+1",
    "NaN",
    "nul",
    "True",
    "'x'",
    "\"\\x\"",
    "\"\\u12\"",
    "\"a\tb\"",
    "x",
];

const INSERTIONS: &[&[u8]] = &[
    b"// comment\n",
    b"/* comment */",
    b"# comment\n",
    b",",
    b"{",
    b"}",
    b"]",
    b"\"",
    b"\\",
    b"\0",
    b"\x7f",
    b" ",
    b"\n",
    b"\x0b",
    b"\xc2\xa0",
    b"null",
    b"{}",
    b"\xff",
    b":",
];

/// Bytes that are no UTF-8, and escapes that are no character.
const NOT_UTF8: &[&[u8]] = &[
    b"\xff",
    b"\xe2\x82",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\\udc00\\ud800",
    b"\\ud83d\\ude00",
    b"\\u0073",
];
