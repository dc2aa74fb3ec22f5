// Reads frames (docs/pages/wire-format.md) from stdin and prints a line for each: a whole
// reader in Rust, without any crate.
//     rustc -O --edition 2021 frame_reader.rs && some_sender | ./frame_reader
use std::io::{stdin, Read};

const LIMIT: u64 = 256 << 20;

fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |c, b| {
        (0..8).fold(c ^ u32::from(*b), |c, _| c >> 1 ^ if c & 1 == 1 { 0xEDB88320 } else { 0 })
    })
}
fn u64_at(h: &[u8], at: usize) -> u64 { u64::from_le_bytes(h[at..at + 8].try_into().unwrap()) }
fn u32_at(h: &[u8], at: usize) -> u32 { u32::from_le_bytes(h[at..at + 4].try_into().unwrap()) }
fn text(field: &[u8]) -> Option<&str> { // ASCII, then zero bytes only
    let text = std::str::from_utf8(field).ok()?.trim_end_matches('\0');
    (text.is_ascii() && !text.contains('\0')).then_some(text)
}
fn payload(h: &[u8]) -> Option<u64> { // how long it is, if the header agrees with itself
    let (order, item) = text(&h[36..40])?.split_at_checked(1)?;
    let size = item.get(1..)?;
    let sides = |i: usize| u64_at(h, 56 + 8 * i);
    let ok = crc32(&h[..124]) == u32_at(h, 124) && h[5] <= 8
        && if size == "1" { order == "|" } else { "<>".contains(order) }
        && "b1 u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 c8 c16".split(' ').any(|known| known == item)
        && text(&h[40..56]).is_some() && (h[5] as usize..8).all(|i| sides(i) == 0);
    if !ok { return None; }
    let size = size.parse::<u64>().ok()?;
    let bytes = |min| (0..h[5] as usize).try_fold(size, |n, i| n.checked_mul(sides(i).max(min)));
    let (most, n) = (bytes(1)?, bytes(0)?); // most: with 1 in place of each 0
    (most >> 63 == 0 && n == u64_at(h, 24)).then_some(n)
}
fn read(input: &mut impl Read) -> Result<Option<String>, &'static str> {
    let mut h = Vec::new();
    input.take(128).read_to_end(&mut h).map_err(|_| "TruncatedFrame")?;
    if h.is_empty() { return Ok(None); }
    if h.len() < 128 { return Err("TruncatedFrame"); }
    if &h[..4] != b"AZCF" { return Err("WrongMagic"); }
    if h[4] != 1 { return Err("UnknownVersion"); }
    let (payload, metadata) = (payload(&h).ok_or("CorruptHeader")?, u32_at(&h, 32));
    if payload > LIMIT || metadata > 65536 { return Err("FrameTooLarge"); }
    let mut data = vec![0; metadata as usize + payload as usize];
    input.read_exact(&mut data).map_err(|_| "TruncatedFrame")?;
    let format = text(&h[40..56]).filter(|name| !name.is_empty()).unwrap_or("-");
    let shape: Vec<_> = (0..h[5] as usize).map(|i| u64_at(&h, 56 + 8 * i).to_string()).collect();
    Ok(Some(format!("{} {} {} {format} {} {metadata} {} {}", u64_at(&h, 8), u64_at(&h, 16) as i64,
        text(&h[36..40]).unwrap(), h[6] & 1, crc32(&data[metadata as usize..]), shape.join("x"))))
}
fn main() -> Result<(), &'static str> {
    while let Some(line) = read(&mut stdin().lock())? { println!("{line}"); }
    Ok(())
}
