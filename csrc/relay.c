/* relay.c - moves bytes from one channel to another, with a thread of its own.
 *
 * A relay waits its turn as any message does: it has an operation in each of the two
 * queues, a hold, which has no bytes of its own.  The queue stops at a hold.
 *
 *   both holds submitted --> the sink's turn --> the source's turn --> moving --> over
 *
 * A turn comes when the hold is the first of its queue and no other thread is driving
 * the channel.  From then on the relay drives it (channel.h), with in_call set: so a
 * cancel, a close or an error of another thread only asks the relay to stop, and wakes
 * it.  Before its turn a hold may end like any operation; then the relay ends, and has
 * moved nothing.
 *
 * A relay that completes is a message from a file of its own.  If it is cancelled before
 * a byte is out, it leaves no trace.  If it is cancelled later, that is reported to the
 * caller at once, and the relay goes on; if the file fails then, the sink breaks, since
 * no one else would learn of it.  The source may be closed meanwhile, which takes effect
 * at the relay's end.
 *
 * passing.h says how the bytes pass.  Bytes that were taken and are not out when the
 * relay ends go out to the sink before any later message.  If the sink cannot take them,
 * the source's next receive gets them.
 */
#include "passing.h"

#include <errno.h>

#include "ending.h"
#include "move.h"
#include "queue.h"
#include "sabotage.h"

enum { REST_ROOM = 256 << 10 }; /* bytes that may lie between, in memory */

typedef struct azc_relay {
    azc_hold hold; /* first, so that its address is the relay's */
    azc_id id;
    azc_passage pass;
    azc_op *spare; /* for bytes that are delivered after the relay's end */
    int source_error;

    /* under the lock of its number */
    bool over;  /* the thread has ended */
    bool freed; /* azc_relay_free was called */
} azc_relay;

/* ---- waking ----------------------------------------------------------- */

static void wake(azc_hold *hold) { azc_sys.signal(((azc_relay *)hold)->pass.wake[1]); }

static void lose(azc_hold *hold, bool outward, int status) {
    azc_relay *relay = (azc_relay *)hold;
    azc_side *side = outward ? &relay->pass.sink : &relay->pass.source;
    side->hold = NULL;
    side->lost = status;
    wake(hold);
}

/* ---- the turn --------------------------------------------------------- */

/* Takes the turn if it has come and is wanted.  False: the hold has ended. */
static bool try_turn(azc_side *side, bool wanted) {
    if (side->turn) return true;
    azc_channel *channel = azc__find(side->id);
    if (!channel) return false;
    bool alive = side->hold;
    if (wanted && azc__begin_turn(channel, side->hold)) {
        side->channel = channel;
        side->turn = true;
    }
    azc__leave(channel);
    return alive;
}

/* Returns with both turns, or as soon as the relay cannot get both any more. */
static void await_turns(azc_passage *pass) {
    azc_side *source = &pass->source, *sink = &pass->sink;
    while (!azc__pass_must_stop(pass)) {
        if (!try_turn(sink, true) || !try_turn(source, sink->turn)) return;
        if (source->turn) return;
        struct pollfd woken;
        azc__pass_wait(pass, &woken, 1);
    }
}

/* ---- the end ---------------------------------------------------------- */

/* Does the sink go on?  Then it gets the bytes that lie between. */
static bool goes_on(const azc_relay *relay) {
    azc_channel *channel = relay->pass.sink.channel;
    if (!relay->pass.sink.turn) return false;
    azc__lock(channel);
    bool open = channel->state == OPEN && !channel->error;
    azc__unlock(channel);
    return open;
}

/* Leaves the bytes that lie between to the source's next receive. */
static void give_back(azc_relay *relay, azc_channel *channel) {
    azc_passage *pass = &relay->pass;
    if (!pass->rest_bytes) return;
    memmove(pass->rest, pass->rest + pass->rest_at, pass->rest_bytes);
    if (channel->leftover)
        memcpy(pass->rest + pass->rest_bytes, channel->bounce + channel->leftover_at,
               channel->leftover);
    azc_sys.release(channel->bounce);
    channel->bounce = pass->rest;
    channel->leftover_at = 0;
    channel->leftover += pass->rest_bytes;
    atomic_fetch_sub(&pass->taken, pass->rest_bytes);
    pass->rest = NULL;
    pass->rest_bytes = 0;
}

/* Lets the channel go on, and releases its lock. */
static void end_side(const azc_side *side, azc_channel *channel) {
    if (side->turn)
        azc__end_turn(channel);
    else
        azc__hand_to_pump(channel, DROVE_BUDGET);
    azc__leave(channel);
}

static void end_source(azc_relay *relay, bool delivers) {
    azc_side *side = &relay->pass.source;
    azc_channel *channel = azc__find(side->id);
    if (!channel) return;
    if (side->turn && !delivers) give_back(relay, channel);
    if (side->turn) channel->in_call = false;
    if (side->turn) relay->source_error = channel->error;
    if (side->hold) {
        side->hold->in_flight = 0;
        azc__end_one(channel, side->hold, 0, AZC_DROPPED);
    }
    if (relay->source_error) azc__break(channel, relay->source_error);
    end_side(side, channel);
}

/* Queues the bytes that lie between before all other messages. */
static void deliver(azc_relay *relay, azc_channel *channel) {
    struct iovec rest = {relay->pass.rest + relay->pass.rest_at,
                         relay->pass.rest_bytes};
    azc_op *op = relay->spare;
    azc__op_fill(op, &rest, 1);
    op->messages = 0;
    op->rescue = relay->pass.rest;
    relay->spare = NULL;
    relay->pass.rest = NULL;
    channel->stats.rescued += rest.iov_len;
    azc__queue_push_first(&channel->queue, op);
}

/* Was it reported to the caller that the relay goes on by itself? */
static bool goes_alone(const azc_side *sink) {
    return sink->hold && sink->hold->hold->completes && !sink->hold->note;
}

/* The outcome and the status of the sink's event. */
static int outcome_of(const azc_relay *relay, const azc_op *hold, bool delivers,
                      int *status) {
    const azc_side *source = &relay->pass.source;
    *status = relay->source_error;
    if (relay->source_error) return AZC_REFUSED;
    if (hold->cancelled) {
        *status = -ECANCELED;
        return delivers && relay->pass.rest_bytes ? AZC_RESCUED : AZC_DROPPED;
    }
    if (azc__is_passed(&relay->pass)) return AZC_DROPPED;
    *status = source->lost ? source->lost : -ESHUTDOWN;
    return AZC_REFUSED;
}

static void end_hold(const azc_relay *relay, azc_channel *channel, bool delivers) {
    azc_op *hold = relay->pass.sink.hold;
    int status, outcome = outcome_of(relay, hold, delivers, &status);
    hold->need = hold->sent;
    azc__end_one(channel, hold, status, outcome);
}

/* Bytes that follow have left the source for good.  So the hold ends as if they were out,
 * even if the sink was closed or broke meanwhile: then they are lost like all that is
 * queued.  (If none follow, a sink that is closing ends its operations itself.) */
static void end_sink(azc_relay *relay, bool delivers) {
    azc_side *side = &relay->pass.sink;
    azc_channel *channel = azc__find(side->id);
    if (!channel) return;
    bool follows = delivers && relay->pass.rest_bytes;
    if (side->turn) channel->in_call = false;
    if (side->hold) side->hold->in_flight = 0;
    if (relay->source_error && goes_alone(side))
        azc__break(channel, relay->source_error);
    if (channel->error && !follows) azc__break(channel, channel->error);
    if (side->hold && (follows || !side->turn || channel->state != CLOSING))
        end_hold(relay, channel, delivers);
    if (follows && channel->state == OPEN && !channel->error) deliver(relay, channel);
    if (channel->error) azc__break(channel, channel->error);
    end_side(side, channel);
}

/* (a hold that is still there was never in a queue) */
static void release(azc_relay *relay) {
    azc_passage *pass = &relay->pass;
    if (pass->sink.hold) azc__note_free(pass->sink.hold->note);
    azc_sys.release(pass->sink.hold);
    azc_sys.release(pass->source.hold);
    sys_close_both(pass->wake);
    sys_close_both(pass->between);
    azc_sys.release(pass->rest);
    azc_sys.release(relay->spare);
    azc_sys.release(relay);
}

/* Call it with the lock of the relay's number, which it releases. */
static void leave(azc_relay *relay) {
    azc_id id = relay->id;
    if (relay->over && relay->freed) {
        azc__handle_drop(&azc__relays, id);
        release(relay);
    } else {
        azc__handle_unlock(&azc__relays, id);
    }
}

/* Was a relay that completes cancelled before a byte was out?  Then drop its bytes. */
static bool leaves_no_trace(const azc_relay *relay) {
    const azc_side *sink = &relay->pass.sink;
    if (!relay->hold.completes || !sink->turn) return false;
    azc__lock(sink->channel);
    bool leaves = sink->hold && sink->hold->cancelled && !sink->hold->sent;
    azc__unlock(sink->channel);
    return leaves;
}

static void *run(void *arg) {
    azc_relay *relay = arg;
    await_turns(&relay->pass);
    if (relay->pass.sink.turn && relay->pass.source.turn)
        azc__pass(&relay->pass);
    else
        relay->pass.rest_bytes = 0; /* they are those of `first`: nothing was taken */
    if (relay->pass.in_between) azc__pass_by_copy(&relay->pass);
    if (leaves_no_trace(relay)) relay->pass.rest_bytes = 0;
    if (SABOTAGED(BETWEEN)) relay->pass.rest_bytes = 0;
    azc__party_leave(&relay->pass.party);
    bool delivers = goes_on(relay);
    end_source(relay, delivers);
    end_sink(relay, delivers);
    azc__handle_lock(&azc__relays, relay->id);
    sys_close_both(relay->pass.wake);
    sys_close_both(relay->pass.between);
    relay->over = true;
    leave(relay);
    return NULL;
}

/* ---- the calls -------------------------------------------------------- */

static azc_relay *relay_new(size_t first) {
    azc_relay *relay = sys_zeros(sizeof *relay);
    if (!relay) return NULL;
    azc_passage *pass = &relay->pass;
    relay->hold.wake = wake;
    relay->hold.lost = lose;
    pass->wake[0] = pass->wake[1] = -1;
    pass->between[0] = pass->between[1] = -1;
    pass->rest_room = first > REST_ROOM ? first : REST_ROOM;
    pass->rest = azc_sys.allocate(pass->rest_room);
    relay->spare = azc__op_new(NULL, 0, NULL, 0);
    pass->source.hold = azc__op_new(NULL, 0, NULL, 0);
    pass->sink.hold = azc__op_new(NULL, 0, NULL, 0);
    if (!pass->rest || !relay->spare || !pass->source.hold || !pass->sink.hold) {
        release(relay);
        return NULL;
    }
    return relay;
}

/* Are both sides the same pipe or file?  The relay would never end. */
static bool is_onto_itself(const azc_relay *relay, const azc_channel *it) {
    const azc_side *sink = &relay->pass.sink;
    return sink->id && (S_ISFIFO(it->mode) || S_ISREG(it->mode)) &&
           it->device == sink->device && it->inode == sink->inode;
}

/* Puts the hold into its queue; 0 or -errno. */
static int queue_hold(azc_relay *relay, azc_side *side, azc_id id, int direction) {
    azc_channel *channel = azc__enter(id);
    if (!channel) return azc__why(id);
    int r = azc__refusal(channel);
    if (r == 0 && !(channel->flags & direction)) r = -EINVAL;
    if (r == 0 && is_onto_itself(relay, channel)) r = -EINVAL;
    if (r == 0) {
        side->device = channel->device;
        side->inode = channel->inode;
        side->id = id;
        side->mode = channel->mode;
        side->hold->hold = &relay->hold;
        side->hold->need = UINT64_MAX;
        side->hold->submitting = direction == AZC_OUT;
        azc__queue_push(&channel->queue, side->hold);
    }
    azc__leave(channel);
    return r;
}

/* From here on an event reports the end of the sink's hold, unless the call fails (r < 0).
 * The hold may have ended already, or been cancelled. */
static void end_submission(azc_relay *relay, azc_op *hold, int r) {
    azc_channel *channel = azc__find(relay->pass.sink.id);
    hold->submitting = false;
    if (r < 0) {
        azc__note_free(hold->note);
        hold->note = NULL;
    }
    if (hold->ended) {
        azc__note_post(hold->note, hold->sent, hold->status, hold->outcome);
        azc__op_free(hold);
    } else if (r < 0) {
        azc__end_one(channel, hold, r, AZC_DROPPED);
        azc__hand_to_pump(channel, DROVE_BUDGET);
    } else if (!hold->in_flight) {
        azc__apply_cancel_of(channel, hold);
    }
    if (channel) azc__leave(channel);
}

static int begin(azc_relay *relay, azc_id source, azc_id sink, int *failed) {
    pthread_t thread;
    azc_op *hold = relay->pass.sink.hold;
    *failed = AZC_OUT;
    int r = queue_hold(relay, &relay->pass.sink, sink, AZC_OUT);
    if (r < 0) return r;
    *failed = AZC_IN;
    r = queue_hold(relay, &relay->pass.source, source, AZC_IN);
    if (r == 0) {
        *failed = 0;
        r = azc_sys.thread_start(&thread, run, relay);
        if (r < 0) end_source(relay, false); /* there is no thread */
    }
    end_submission(relay, hold, r);
    return r;
}

int azc_relay_open(const azc_relay_request *wanted, azc_id *out, int *failed) {
    *failed = 0;
    azc_relay *relay = relay_new(wanted->nfirst);
    if (!relay) return -ENOMEM;
    azc_passage *pass = &relay->pass;
    relay->hold.completes = wanted->completes;
    pass->sink.hold->expected = wanted->expected;
    pass->limit = wanted->nbytes;
    pass->once = wanted->once;
    if (wanted->nfirst) memcpy(pass->rest, wanted->first, wanted->nfirst);
    pass->rest_bytes = wanted->nfirst;
    int r = azc_sys.open_waker(pass->wake);
    if (r == 0) r = azc__note_new(wanted->port, wanted->token, &pass->sink.hold->note);
    if (r == 0) relay->id = azc__handle_new(&azc__relays, relay);
    if (r == 0 && !relay->id) r = -ENOMEM;
    if (r < 0) {
        release(relay);
        return r;
    }
    *out = relay->id;
    r = begin(relay, wanted->source, wanted->sink, failed);
    if (r == 0) return -EINPROGRESS;
    *out = 0;
    azc__handle_lock(&azc__relays, relay->id);
    relay->over = relay->freed = true;
    leave(relay);
    return r;
}

int azc_relay_ask(azc_id id, azc_relay_state *state) {
    azc_relay *relay = azc__handle_lock(&azc__relays, id);
    if (!relay) return azc__handle_why(&azc__relays, id);
    *state = (azc_relay_state){
        .taken = atomic_load(&relay->pass.taken),
        .sent = atomic_load(&relay->pass.sent),
        .lane = atomic_load(&relay->pass.lane),
        .began = atomic_load(&relay->pass.began),
    };
    azc__handle_unlock(&azc__relays, id);
    return 0;
}

int azc_relay_free(azc_id id) {
    azc_relay *relay = azc__handle_lock(&azc__relays, id);
    if (!relay) return azc__handle_why(&azc__relays, id);
    relay->freed = true;
    leave(relay);
    return 0;
}

void azc__relay_fork_child(void *object) {
    azc_relay *relay = object;
    sys_close_both(relay->pass.wake);
    sys_close_both(relay->pass.between);
}
