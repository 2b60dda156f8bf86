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
``Stage``      get ready for one call             ``Done``
``Fire``       mix and patch; make that call      ``Changed``, then ``Fired``
``Collect``    send what that call returned       ``Outputs``; blobs
``Inspect``    compare the inputs with what came  ``Inspected``
=============  =================================  ============================

**Order.** ``Confine`` comes first, if it comes. ``Fire`` makes the call that the last ``Stage`` has
prepared, once. ``Collect`` and ``Inspect`` may follow it in any order and number, until the next
``Stage``. ``Call`` sees inputs unshifted and unpatched.

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

**Fire** is an exchange that the judge times, and the only one with several replies, all with its
token. Only it tells the final values of the inputs. ``Changed`` says that they are in place; on
devices that work by themselves, ``Enqueued`` that the call has returned to the host, and
``Finished`` that the device has done it. The candidate waits for nothing before it goes on. By
``Fired`` the outputs are fixed. It tells where in the candidate's memory they lie (`Place`). On the
CPU the judge reads them there itself, with every process of the candidate stopped, after it has
checked type, shape, strides and span against one another. How long the exchange took, and each part
of it, is what the judge's own clock says. When a reply came is all that it knows: one may be said
early or late.

**Time.** Each read and write of the judge has a deadline that holds for the whole exchange.

**Violations.** Anything else, at any point, is a `ProtocolError`: the judge kills the candidate and
reads no further. A connection that ends means that the candidate has ended, or will be.
"""
