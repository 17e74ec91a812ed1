//! Messages of the CRI written as `api.proto` writes them, so that a reader can hold one beside the other.
//!
//! Used by [`super`] and by `cri::stats`. A field is `KIND name = NUMBER;`. `message`, `repeated` and `enumeration` are followed
//! by a type; `labels` is `map<string, string>`, `strings` is `repeated string`, any other kind is a scalar of protobuf.
//! Does not: encode or decode; each message is prost's own derive, and building needs no protoc.

/// Messages with their fields; see the module.
macro_rules! messages {
    ($($(#[$about:meta])* message $name:ident { $($fields:tt)* })*) => {
        $(messages!(@fields [$(#[$about])*] $name {} $($fields)*);)*
    };
    // The fields move one by one from behind the braces into them, each with its attribute.
    (@fields [$($about:tt)*] $name:ident { $($done:tt)* }) => {
        $($about)*
        #[derive(Clone, PartialEq, Eq, ::prost::Message)]
        pub struct $name { $($done)* }
    };
    (@fields $about:tt $name:ident { $($done:tt)* } $(#[$doc:meta])* strings $field:ident = $tag:tt; $($rest:tt)*) => {
        messages!(@fields $about $name {
            $($done)* $(#[$doc])* #[prost(string, repeated, tag($tag))] pub $field: Vec<String>,
        } $($rest)*);
    };
    (@fields $about:tt $name:ident { $($done:tt)* } $(#[$doc:meta])* labels $field:ident = $tag:tt; $($rest:tt)*) => {
        messages!(@fields $about $name {
            $($done)* $(#[$doc])* #[prost(btree_map = "string, string", tag($tag))] pub $field: $crate::cri::messages::Labels,
        } $($rest)*);
    };
    (@fields $about:tt $name:ident { $($done:tt)* } $(#[$doc:meta])* $scalar:ident $field:ident = $tag:tt; $($rest:tt)*) => {
        messages!(@fields $about $name {
            $($done)* $(#[$doc])* #[prost($scalar, tag($tag))] pub $field: messages!(@scalar $scalar),
        } $($rest)*);
    };
    (@fields $about:tt $name:ident { $($done:tt)* } $(#[$doc:meta])* message $of:ident $field:ident = $tag:tt; $($rest:tt)*) => {
        messages!(@fields $about $name {
            $($done)* $(#[$doc])* #[prost(message, optional, tag($tag))] pub $field: Option<$of>,
        } $($rest)*);
    };
    (@fields $about:tt $name:ident { $($done:tt)* } $(#[$doc:meta])* repeated $of:ident $field:ident = $tag:tt; $($rest:tt)*) => {
        messages!(@fields $about $name {
            $($done)* $(#[$doc])* #[prost(message, repeated, tag($tag))] pub $field: Vec<$of>,
        } $($rest)*);
    };
    (@fields $about:tt $name:ident { $($done:tt)* } $(#[$doc:meta])* enumeration $of:ident $field:ident = $tag:tt; $($rest:tt)*) => {
        messages!(@fields $about $name {
            $($done)* $(#[$doc])* #[prost(enumeration($of), tag($tag))] pub $field: i32,
        } $($rest)*);
    };
    (@scalar string) => { String };
    (@scalar bool) => { bool };
    (@scalar int32) => { i32 };
    (@scalar int64) => { i64 };
    (@scalar uint32) => { u32 };
    (@scalar uint64) => { u64 };
}

pub(crate) use messages;
