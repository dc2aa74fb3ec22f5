//! One side of a ring: csrc/azc_ring.h once more, in Rust and without it.
//!
//! That header says why everything is as it is; the layout is docs/pages/ring-layout.md.
use std::ffi::{c_int, c_short, c_void};
use std::fs::File;
use std::io::{self, Error, ErrorKind, Read, Write};
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering::*};

pub const PRODUCER: u32 = 1;
pub const CONSUMER: u32 = 2;

const MAGIC: u64 = 0x3147_4e49_5243_5a41; // "AZCRING1"
const ABI: u32 = 1;
const STEP: u64 = 64;
const HEADER: u64 = 16;
const PAGE: usize = 65536;
const SIDES: [usize; 2] = [128, 384]; // the producer's and the consumer's words
const WAKE_AT: usize = 128; // from there
const LEFT: usize = 136;
const ASK: u32 = 1;
const OFFER: u32 = 2;
const ANSWER: u32 = 3;

#[repr(C)]
#[derive(Default)]
struct Hello {
    magic: u64,
    abi: u32,
    kind: u32,
    role: u32,
    status: i32,
    capacity: u64,
}

#[repr(C)]
struct Header {
    stamp: AtomicU64,
    size: AtomicU32,
    type_id: AtomicU32,
}

// ---- what the system offers, and std does not ----------------------------------------

#[repr(C)]
struct Address {
    family: u16,
    path: [u8; 108],
}
#[repr(C)]
struct Piece {
    base: *mut c_void,
    len: usize,
}
#[repr(C)]
struct Message {
    name: *mut c_void,
    name_len: u32,
    pieces: *mut Piece,
    piece_count: usize,
    control: *mut c_void,
    control_len: usize,
    flags: c_int,
}
#[repr(C)]
struct Control {
    len: usize,
    level: c_int,
    kind: c_int,
    fds: [RawFd; 4], // one more than there may be
}
#[repr(C)]
struct Poll {
    fd: RawFd,
    events: c_short,
    came: c_short,
}

extern "C" {
    fn socket(family: c_int, kind: c_int, protocol: c_int) -> RawFd;
    fn connect(fd: RawFd, address: *const Address, size: u32) -> c_int;
    fn recvmsg(fd: RawFd, message: *mut Message, flags: c_int) -> isize;
    fn recv(fd: RawFd, at: *mut c_void, size: usize, flags: c_int) -> isize;
    fn mmap(at: *mut c_void, size: usize, may: c_int, how: c_int, fd: RawFd, from: i64) -> *mut c_void;
    fn munmap(at: *mut c_void, size: usize) -> c_int;
    fn poll(fds: *mut Poll, count: u64, ms: c_int) -> c_int;
    fn fcntl(fd: RawFd, what: c_int, ...) -> c_int;
}

const SEQPACKET_CLOEXEC: c_int = 0o2_000_005;
const MSG_CTRUNC: c_int = 8;
const MSG_DONTWAIT: c_int = 0x40;
const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;
const F_GET_SEALS: c_int = 1034;
const SEALS: c_int = 7; // F_SEAL_SEAL, _SHRINK, _GROW
const READ: c_int = 1; // PROT_READ
const BOTH: c_int = 3; // and PROT_WRITE

fn checked(result: isize) -> io::Result<isize> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}
fn refuse<T>(why: &str) -> io::Result<T> {
    Err(Error::new(ErrorKind::InvalidData, why))
}

// ---- the ring -------------------------------------------------------------------------

pub struct Ring {
    page: *mut u8,
    capacity: u64,
    mine: usize,
    theirs: usize,
    index: u64, // ours, as it was published
    seen: u64,  // the other's, as it was last read and checked
    next: u64,  // where the consumer's next record begins
    rung: u64,  // the wake_at that we have rung for
    is_gone: bool,
    bell: File,
    their_bell: File,
    socket: File,
}

impl Ring {
    /// Joins the ring of the program that listens at this path.
    pub fn connect(path: &str, role: u32) -> io::Result<Ring> {
        let mut socket = open_socket(path)?;
        say(&mut socket, ASK, role, 0)?;
        let (hello, [memory, bell, their_bell]) = hear_offer(&socket)?;
        let mapped = map(&memory, hello.capacity, hello.role);
        say(&mut socket, ANSWER, 0, if mapped.is_ok() { 0 } else { -71 })?; // EPROTO
        let ours = (hello.role - 1) as usize;
        Ok(Ring {
            page: mapped?,
            capacity: hello.capacity,
            mine: SIDES[ours],
            theirs: SIDES[1 - ours],
            index: 0,
            seen: 0,
            next: 0,
            rung: 0,
            is_gone: false,
            bell,
            their_bell,
            socket,
        })
    }

    /// Sends one record, which `fill` writes; waits while the ring is full.
    pub fn send(&mut self, size: usize, type_id: u32, fill: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let step = stride(size as u64);
        if step > self.capacity {
            return refuse("the record is larger than the ring");
        }
        let end = self.index + step;
        while end - self.seen > self.capacity {
            if self.has_left() {
                return Err(ErrorKind::BrokenPipe.into());
            }
            self.look(self.index)?;
            if end - self.seen > self.capacity {
                if self.is_gone {
                    return Err(ErrorKind::BrokenPipe.into());
                }
                self.wait(end - self.capacity, self.index)?;
            }
        }
        // (up to `end` it is all ours, as the index of the consumer says)
        fill(unsafe { std::slice::from_raw_parts_mut(self.payload(self.index), size) });
        let header = self.header(self.index);
        header.stamp.store(self.index + 1, Release);
        header.size.store(size as u32, Release);
        header.type_id.store(type_id, Release);
        self.publish(end)
    }

    /// Shows the next record to `look_at`, and waits for it; false: none will come.
    pub fn receive(&mut self, mut look_at: impl FnMut(&[u8], u32)) -> io::Result<bool> {
        while self.next == self.seen {
            let (has_left, was_gone) = (self.has_left(), self.is_gone);
            let most = self.index + self.capacity;
            self.look(most)?;
            if self.next != self.seen {
                break;
            } else if has_left {
                return Ok(false);
            } else if was_gone {
                return Err(ErrorKind::BrokenPipe.into());
            }
            self.wait(self.next + STEP, most)?;
        }
        let header = self.header(self.next);
        let (stamp, size) = (header.stamp.load(Acquire), header.size.load(Acquire));
        if stamp != self.next + 1 {
            return refuse("there is no record where one should begin");
        }
        if stride(size.into()) > self.seen - self.next {
            return refuse("a record ends after the producer's index");
        }
        let payload = self.payload(self.next);
        // (it could still change: copy it first if you do not trust the producer)
        look_at(unsafe { std::slice::from_raw_parts(payload, size as usize) }, header.type_id.load(Acquire));
        self.next += stride(size.into());
        self.publish(self.next)?;
        Ok(true)
    }

    /// Tells the other side that this is the end, and no fault.
    pub fn close(mut self) -> io::Result<()> {
        self.left(self.mine).store(1, Release);
        fence(SeqCst);
        self.knock()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        unsafe { &*self.page.add(at).cast() }
    }
    fn left(&self, side: usize) -> &AtomicU32 {
        unsafe { &*self.page.add(side + LEFT).cast() }
    }
    fn has_left(&self) -> bool {
        self.left(self.theirs).load(Acquire) != 0
    }
    fn payload(&self, position: u64) -> *mut u8 {
        let at = (position & (self.capacity - 1)) + STEP;
        unsafe { self.page.add(PAGE + at as usize) }
    }
    fn header(&self, position: u64) -> &'static Header {
        unsafe { &*self.payload(position).sub(HEADER as usize).cast() }
    }

    /// Reads the other's index, which may be anything.
    fn look(&mut self, most: u64) -> io::Result<()> {
        let at = self.word(self.theirs).load(Acquire);
        if at < self.seen || at > most || at % STEP != 0 {
            return refuse("the peer's index went back, or too far");
        }
        self.seen = at;
        Ok(())
    }

    /// Publishes our index, and rings if the other sleeps until it.
    fn publish(&mut self, index: u64) -> io::Result<()> {
        self.index = index;
        self.word(self.mine).store(index, Release);
        fence(SeqCst);
        let wake_at = self.word(self.theirs + WAKE_AT).load(Acquire);
        if index < wake_at || wake_at == self.rung {
            return Ok(());
        }
        self.rung = wake_at;
        self.knock()
    }

    fn knock(&mut self) -> io::Result<()> {
        match self.their_bell.write_all(&1u64.to_ne_bytes()) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()), // (it is full: it rings anyway)
        }
    }

    /// Sleeps until the other's index is `wake_at` or more, unless it is already.
    fn wait(&mut self, wake_at: u64, most: u64) -> io::Result<()> {
        self.word(self.mine + WAKE_AT).store(wake_at, Release);
        fence(SeqCst);
        self.look(most)?;
        if self.seen >= wake_at || self.has_left() {
            return Ok(());
        }
        let (bell, socket) = (self.bell.as_raw_fd(), self.socket.as_raw_fd());
        let mut fds = [bell, socket].map(|fd| Poll { fd, events: 1, came: 0 }); // POLLIN
        if unsafe { poll(fds.as_mut_ptr(), 2, -1) } < 0 {
            let error = Error::last_os_error();
            return if error.kind() == ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        if fds[0].came != 0 {
            let _ = self.bell.read(&mut [0; 8]); // empties it; then we look again
        }
        if fds[1].came != 0 {
            let mut byte = 0u8;
            let n = unsafe { recv(socket, (&raw mut byte).cast(), 1, MSG_DONTWAIT) };
            if n > 0 {
                return refuse("something was sent after the handshake");
            }
            self.is_gone = n == 0 || Error::last_os_error().kind() != ErrorKind::WouldBlock;
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        unsafe { munmap(self.page.cast(), PAGE + 2 * self.capacity as usize) };
    }
}

fn stride(size: u64) -> u64 {
    (size + HEADER).div_ceil(STEP) * STEP
}

// ---- the handshake --------------------------------------------------------------------

fn open_socket(path: &str) -> io::Result<File> {
    let mut address = Address { family: 1, path: [0; 108] }; // AF_UNIX
    if path.len() >= address.path.len() {
        return refuse("the path is too long for a socket");
    }
    address.path[..path.len()].copy_from_slice(path.as_bytes());
    unsafe {
        let fd = checked(socket(1, SEQPACKET_CLOEXEC, 0) as isize)?;
        let socket = File::from_raw_fd(fd as RawFd);
        checked(connect(fd as RawFd, &address, size_of::<Address>() as u32) as isize)?;
        Ok(socket)
    }
}

fn say(socket: &mut File, kind: u32, role: u32, status: i32) -> io::Result<()> {
    let hello = Hello { magic: MAGIC, abi: ABI, kind, role, status, capacity: 0 };
    let bytes: [u8; size_of::<Hello>()] = unsafe { std::mem::transmute(hello) };
    socket.write_all(&bytes)
}

/// Receives the offer, and its fds: the memory, our doorbell, the other's.
fn hear_offer(socket: &File) -> io::Result<(Hello, [File; 3])> {
    let mut hello = Hello::default();
    let mut control: Control = unsafe { zeroed() };
    let mut piece = Piece { base: (&raw mut hello).cast(), len: size_of::<Hello>() };
    let mut message = Message {
        name: null_mut(),
        name_len: 0,
        pieces: &mut piece,
        piece_count: 1,
        control: (&raw mut control).cast(),
        control_len: size_of::<Control>(),
        flags: 0,
    };
    let n = checked(unsafe { recvmsg(socket.as_raw_fd(), &mut message, MSG_CMSG_CLOEXEC) })?;
    let came = message.control_len >= size_of::<usize>() && (control.level, control.kind) == (1, 1);
    let size = if came { control.len.saturating_sub(offset_of!(Control, fds)) } else { 0 };
    // (they are ours from here on: those that are too many are closed again)
    let fds = control.fds.iter().take(size / size_of::<RawFd>());
    let files: Vec<File> = fds.map(|fd| unsafe { File::from_raw_fd(*fd) }).collect();
    if n == 0 {
        return Err(ErrorKind::ConnectionReset.into());
    }
    if n as usize != size_of::<Hello>() || (hello.magic, hello.abi, hello.kind) != (MAGIC, ABI, OFFER) {
        return refuse("this is no ring, or one of another version");
    }
    if hello.status < 0 {
        return Err(Error::from_raw_os_error(-hello.status));
    }
    match files.try_into() {
        Ok(files) if message.flags & MSG_CTRUNC == 0 => Ok((hello, files)),
        _ => refuse("the offer has too many fds, or too few"),
    }
}

/// Maps the page, and after it the data, twice.
fn map(memory: &File, capacity: u64, role: u32) -> io::Result<*mut u8> {
    let (fd, n) = (memory.as_raw_fd(), capacity as usize);
    let seals = unsafe { fcntl(fd, F_GET_SEALS) };
    if seals < 0 || seals & SEALS != SEALS {
        return refuse("the memory is not sealed: it could be taken from under us");
    }
    let is_sound = capacity.is_power_of_two() && (65536..1 << 40).contains(&capacity);
    if !is_sound || !(PRODUCER..=CONSUMER).contains(&role) || memory.metadata()?.len() != capacity + PAGE as u64 {
        return refuse("the ring is not of the size that was offered");
    }
    let may = if role == PRODUCER { BOTH } else { READ };
    unsafe {
        let all = mmap(null_mut(), PAGE + 2 * n, 0, 0x4022, -1, 0); // private, anonymous, no reserve
        if all as isize == -1 {
            return Err(Error::last_os_error());
        }
        for (at, size, may, from) in [(0, PAGE, BOTH, 0), (PAGE, n, may, PAGE), (PAGE + n, n, may, PAGE)] {
            let place = all.cast::<u8>().add(at).cast();
            if mmap(place, size, may, 0x11, fd, from as i64) as isize == -1 { // shared, fixed
                let error = Error::last_os_error();
                munmap(all, PAGE + 2 * n);
                return Err(error);
            }
        }
        let page: *const Hello = all.cast(); // (begins as a hello does: the magic, the version)
        if ((*page).magic, (*page).abi) != (MAGIC, ABI) {
            munmap(all, PAGE + 2 * n);
            return refuse("the memory is no ring, or one of another version");
        }
        Ok(all.cast())
    }
}
