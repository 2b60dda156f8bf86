"""How judge and candidate talk; this page is the specification.

**Connection.** One pair of connected Unix stream sockets per candidate. The judge, which is
trusted, holds one end; the candidate, whose memory untrusted code shares, the other. Everything
that arrives at the judge is hostile input: it is never unpickled, evaluated, imported or used as
a format string or path.

**Frames** (`frames`). Twelve bytes of header (``FIB``, one letter for the kind, the length as
unsigned 64-bit little endian), then the payload. Kind ``C`` is one message in JSON; kind ``B`` is
a *blob*, the plain bytes of one tensor in row-major order and native byte order.

**Messages** (`messages`). Strict records, tagged by ``type``; unknown fields, wrong types and
values out of bounds are refused. A request carries a random ``token`` that its reply repeats.

=============  =================================  ============================
request        meaning                            reply
=============  =================================  ============================
(start)        the process is up                  ``Ready`` with token 0
``Compile``    leave a build for others on disk   ``Compiled``
``Confine``    give up what a solution needs not  ``Confined``
``Load``       build a solution for a definition  ``Loaded``
``PutInputs``  keep the blobs under a slot        ``Done``
``Call``       call once with a slot's inputs     ``Outputs``; blobs
``Attach``     map memory of the judge's          ``Done``
``Fire``       make and time one call             ``Fired``
``FireRound``  make and time several              ``RoundFired``
``Collect``    send what a call returned          ``Outputs``; blobs
=============  =================================  ============================

**Order.** ``Confine`` comes first, if it comes. ``Collect`` may follow a ``Fire`` or ``FireRound``
any number of times, until the next one. Two open files follow ``Attach``, with one byte in between
two frames.

Each reply may be replaced by ``Failed``, the last one then, which says whether the code raised, a
build failed, or the machine lacks something. There is no farewell: the judge kills the
candidate when it needs it no longer. Requests are answered in order, one at a time;
a request and its blobs are read completely before a reply is written.

A process that has been started to compile answers ``Confine`` and ``Compile`` alone.

**Blobs** follow the message that announces them, one for each of its tensors in order (those marked
``omitted`` excepted), and have exactly the announced size.

**Limits.** A request has at most 64 MiB, a reply 4 MiB, blobs not counted. A message announces at
most 256 values. The judge states with each call how many bytes of outputs it takes; the candidate
announces larger tensors as ``omitted``, so that their shape can be judged all the same.

**Fire** is an exchange that the judge times. Inputs that were put are simply called with. Inputs in
attached memory are called with once the judge says so in a page that both map, by words of 64 bits
(`flashinfer_bench.bench.memory`): the candidate copies ``GO`` to ``SEEN`` until it is the number
that ``Fire`` has told. So the judge knows that it waits, writes the inputs, and then that number.
The candidate makes the call, writes ``ADDRESSES``, where the tensors that were returned begin, and
the number into ``DONE``. By then the outputs are fixed. ``Fired`` comes only after it. What a call
takes is, by the judge's own clock, from ``GO`` to ``DONE``. A word may be written early or late,
and anything may be in it: when it changed is all that the judge knows.

**FireRound** is for calls on a device that works by itself. The candidate enqueues all of them
behind a gate that opens with ``GO``, and writes ``SEEN`` when that is done; or it waits for ``GO``
itself. The outputs are those in attached memory, and ``DONE`` is written once all are there.

``Fired`` tells where in the candidate's memory the outputs lie (`Place`). On the CPU the judge
reads them there itself, with every process of the candidate stopped, after it has checked type,
shape, strides and span against one another.

**Time.** Each read and write of the judge has a deadline that holds for the whole exchange.

**Violations.** Anything else, at any point, is a `ProtocolError`: the judge kills the candidate and
reads no further. A connection that ends means that the candidate has ended, or will be.
"""
