/* A load: closed loop, so many connections, each with one request at a time, as fast as they are answered; or open
 * loop, evenly spaced requests at a RATE whatever the answers do, each on a free connection or a new one.
 *
 * Usage: drive PORT PATH BODY_FILE CONNECTIONS WARM_SECONDS SECONDS EVENTS [RATE]
 * In the open loop the time of an answer counts from the moment when its request was due, so that a request that
 * could not be sent in time is as late as its client found it.
 * EVENTS > 0: the answer must be a stream of exactly so many events. 0: it must have the status 200 and the content of
 * the first answer, byte for byte. Writes a line "begin" when the measured time begins, and when it is over a line of
 * JSON: requests, events, errors, seconds, and the median and 99th percentile of the time to a whole answer. Ends with
 * the status 1 when it cannot connect.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 1024, HEAD_BYTES = 16384, READ_BYTES = 65536, SLOTS = 500000, SLOT_MICROSECONDS = 20 };

typedef struct {
  int fd;
  char head[HEAD_BYTES];
  int head_bytes;     /* of the answer, as far as it is kept: its head, and a small body */
  int body_left;      /* -1: chunked; meaningful once the head is complete */
  int complete_head;
  enum { SIZE, DATA, AFTER_DATA, TRAILER } state; /* of a chunked answer */
  long chunk_left;
  int line_bytes;     /* of the trailer line so far */
  int events, newline;
  double sent;
} connection;

static connection all[MAX_CONNECTIONS];
static char request[READ_BYTES], first_body[HEAD_BYTES];
static int request_bytes, first_bytes = -1, wanted_events, poller, port;
static long requests, events, errors;
static unsigned slots[SLOTS];
static connection *idle[MAX_CONNECTIONS]; /* open loop only */
static int idle_count, dialled;
static double rate, due;

static double now_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void ask(connection *c, double since) {
  c->head_bytes = c->complete_head = c->events = c->newline = c->line_bytes = 0;
  c->state = SIZE;
  c->chunk_left = 0;
  c->sent = since;
  if (send(c->fd, request, request_bytes, MSG_NOSIGNAL) != request_bytes) errors++;
}

static void dial(connection *c) {
  int on = 1;
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(c->fd, (void *)&address, sizeof address)) {
    perror("drive: cannot connect");
    exit(1);
  }
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
}

/* The connection may take its next request: at once in the closed loop, when one is due in the open one. */
static void next(connection *c) {
  if (rate > 0) idle[idle_count++] = c;
  else ask(c, now_seconds());
}

static void again(connection *c) {
  close(c->fd);
  dial(c);
  next(c);
}

static void finish(connection *c, int right) {
  long slot = (now_seconds() - c->sent) * 1e6 / SLOT_MICROSECONDS;
  requests++;
  if (!right) errors++;
  slots[slot < SLOTS ? slot : SLOTS - 1]++;
  next(c);
}

/* Reads the head when it is whole. -1: not an answer that was wanted. */
static int read_head(connection *c, int *body_at) {
  char *end = memmem(c->head, c->head_bytes, "\r\n\r\n", 4);
  if (!end) return c->head_bytes < HEAD_BYTES - 1 ? 0 : -1;
  if (memcmp(c->head, "HTTP/1.1 200", 12)) return -1;
  *end = 0;
  const char *field = strcasestr(c->head, "\r\ncontent-length:");
  c->body_left = field ? atoi(field + 17) : -1;
  if (!field && !strcasestr(c->head, "\r\ntransfer-encoding:")) return -1;
  *end = '\r';
  *body_at = end + 4 - c->head;
  c->complete_head = *body_at;
  return 1;
}

static void count_events(connection *c, const char *bytes, int length) {
  for (const char *at = bytes; (at = memchr(at, '\n', bytes + length - at)); at++) {
    int ends = at > bytes ? at[-1] == '\n' : c->newline;
    c->events += ends;
    events += ends;
  }
  c->newline = bytes[length - 1] == '\n';
}

/* Takes the framing off: a proxy may cut an event anywhere. 1: the answer is over, 0: more to come. */
static int read_chunks(connection *c, const char *bytes, int length) {
  for (int i = 0; i < length; i++) {
    char byte = bytes[i];
    if (c->state == SIZE) {
      if (byte == '\n') c->state = c->chunk_left ? DATA : TRAILER;
      else if (byte != '\r') c->chunk_left = c->chunk_left * 16 + (byte <= '9' ? byte - '0' : (byte | 32) - 'a' + 10);
    } else if (c->state == DATA) {
      int part = c->chunk_left < length - i ? (int)c->chunk_left : length - i;
      count_events(c, bytes + i, part);
      if (!(c->chunk_left -= part)) c->state = AFTER_DATA;
      i += part - 1;
    } else if (c->state == AFTER_DATA) {
      if (byte == '\n') c->state = SIZE;
    } else if (byte == '\n') {
      if (!c->line_bytes) return 1;
      c->line_bytes = 0;
    } else if (byte != '\r') {
      c->line_bytes++;
    }
  }
  return 0;
}

static int same_body(connection *c) {
  int length = c->head_bytes - c->complete_head;
  const char *body = c->head + c->complete_head;
  if (first_bytes < 0) {
    memcpy(first_body, body, length);
    first_bytes = length;
  }
  return length == first_bytes && !memcmp(body, first_body, length);
}

static void take(connection *c) {
  char bytes[READ_BYTES];
  int body_at = 0, got = recv(c->fd, bytes, sizeof bytes, 0);
  if (got <= 0) { errors++; again(c); return; }
  int kept = got < HEAD_BYTES - 1 - c->head_bytes ? got : HEAD_BYTES - 1 - c->head_bytes;
  int before = c->head_bytes;
  if (!c->complete_head || !wanted_events) {
    memcpy(c->head + c->head_bytes, bytes, kept);
    c->head_bytes += kept;
  }
  if (!c->complete_head) {
    int state = read_head(c, &body_at);
    if (state < 0) { errors++; again(c); return; }
    if (!state) return;
    body_at -= before;
  }
  int length = got - body_at;
  if (c->body_left >= 0) {
    c->body_left -= length;
    if (c->body_left <= 0) finish(c, !wanted_events && c->body_left == 0 && same_body(c));
  } else if (length > 0 && read_chunks(c, bytes + body_at, length)) {
    finish(c, wanted_events ? c->events == wanted_events : same_body(c));
  }
}

static double percentile(double share) {
  long wanted = requests * share, seen = 0;
  for (int i = 0; i < SLOTS; i++)
    if ((seen += slots[i]) > wanted) return (i + 0.5) * SLOT_MICROSECONDS / 1e3;
  return 0;
}

/* Sends what is due before `end`; the seconds until more will be. */
static double send_due(double end) {
  double now = now_seconds();
  for (; due <= now && due < end; due += 1 / rate) {
    if (!idle_count && dialled == MAX_CONNECTIONS) { errors++; continue; }
    connection *c = idle_count ? idle[--idle_count] : &all[dialled++];
    if (!c->fd) dial(c);
    ask(c, due);
  }
  return due - now_seconds();
}

static void run_until(double end) {
  struct epoll_event ready[256];
  struct pollfd any = {.fd = poller, .events = POLLIN};
  while (now_seconds() < end) {
    double wait = rate > 0 ? send_due(end) : 0.01;
    if (wait > 0.01) wait = 0.01;
    struct timespec patience = {.tv_nsec = wait > 0 ? (long)(wait * 1e9) : 0};
    ppoll(&any, 1, &patience, NULL); /* epoll_wait alone knows only milliseconds */
    int count = epoll_wait(poller, ready, 256, 0);
    for (int i = 0; i < count; i++) take(ready[i].data.ptr);
  }
}

/* What was sent before the end is still awaited, or the slowest answers would be the ones that are not counted. */
static void await_answers(double longest) {
  double end = now_seconds() + longest;
  due = end + 1;
  while (rate > 0 && idle_count < dialled && now_seconds() < end) run_until(now_seconds() + 0.005);
  if (rate > 0) errors += dialled - idle_count;
}

static void prepare(const char *path, const char *body_file) {
  char body[READ_BYTES / 2];
  FILE *file = fopen(body_file, "rb");
  int length = file ? (int)fread(body, 1, sizeof body, file) : 0;
  if (!length) {
    fprintf(stderr, "drive: %s cannot be read or is empty\n", body_file);
    exit(2);
  }
  fclose(file);
  request_bytes = sprintf(request, "POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                                   "content-length: %d\r\n\r\n", path, length);
  memcpy(request + request_bytes, body, length);
  request_bytes += length;
}

int main(int count, char **arguments) {
  if (count != 8 && count != 9) {
    fprintf(stderr, "usage: drive PORT PATH BODY_FILE CONNECTIONS WARM_SECONDS SECONDS EVENTS [RATE]\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  port = atoi(arguments[1]);
  prepare(arguments[2], arguments[3]);
  wanted_events = atoi(arguments[7]);
  poller = epoll_create1(0);
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* nanoseconds: requests go when they are due */
  rate = count == 9 ? atof(arguments[8]) : 0;
  int wanted = atoi(arguments[4]);
  for (; dialled < wanted && dialled < MAX_CONNECTIONS; dialled++) {
    dial(&all[dialled]);
    next(&all[dialled]);
  }
  due = now_seconds();
  run_until(due + atof(arguments[5]));
  long early_errors = errors;
  requests = events = errors = 0;
  memset(slots, 0, sizeof slots);
  puts("begin");
  fflush(stdout);
  double start = now_seconds();
  run_until(start + atof(arguments[6]));
  double seconds = now_seconds() - start;
  await_answers(2);
  printf("{\"requests\": %ld, \"events\": %ld, \"errors\": %ld, \"seconds\": %.6f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}\n",
         requests, events, errors + early_errors, seconds, percentile(0.5), percentile(0.99));
  fflush(stdout);
  return 0;
}
